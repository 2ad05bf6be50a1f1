"""Remakes tables and figures of two surveys of LLM inference beside ours: writes docs/paper.md and docs/paper.png.

Run as `python benchmarks/paper.py`; about a minute, and a Chromium for the picture.
"""

from __future__ import annotations

import csv
import sys
import tempfile
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from math import log2
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":  # not on import, which must leave the path as it is
    sys.path.insert(0, str(ROOT))

from llmviewer import analyze, simulate  # noqa: E402
from llmviewer.devices.files import load_hardware  # noqa: E402
from llmviewer.expectation.engines import engine_names, find_engine  # noqa: E402
from llmviewer.forms import evaluate  # noqa: E402
from llmviewer.memory import activation_bytes, weight_bytes  # noqa: E402
from llmviewer.model import kv_cache  # noqa: E402
from llmviewer.reports.plot import draw  # noqa: E402
from llmviewer.resource import matrix  # noqa: E402
from llmviewer.serving.saturation import max_throughput  # noqa: E402
from llmviewer.setting import Setting  # noqa: E402
from llmviewer.units import si  # noqa: E402
from llmviewer.workload import Workload  # noqa: E402
from tests.survey import (  # noqa: E402
    BATCHES,
    FIGURE_6,
    FIGURE_7,
    FIGURE_8,
    LENGTHS,
    PRINTED_1,
    TABLE_2,
    TABLE_5,
    TOOL,
    VICUNA,
    scaled,
    slope,
)  # fmt: skip

PAGE = ROOT / "docs" / "paper.md"
_A100, _A6000 = "a100-sxm-80gb", "rtx-a6000"
_LIBRARIES = {"TensorRT-LLM": "trtllm", "LMDeploy": "vllm"}
_NAMES = {
    "speculative": "speculative decoding (SpD)", "lookahead": "lookahead (LADE)", "self-speculative":
    "self-speculative (SSD)", "retrieval": "retrieval (REST)", "medusa": "Medusa-1", "eagle": "EAGLE",
}  # fmt: skip
_FIGURES = ("roofline", "dtypes", "memory", "decode-time", "prefill-time")  # 4 to 8
_WIDTH, _HEIGHT = 820, 520  # of a figure [px]
_UNITS = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_MIXING = ("attention", "scan")  # kinds of operators that mix tokens
_TOKENS = [2**n for n in range(14, 20)]  # tokens
_HEAD = """# Against the surveys

Written by `python benchmarks/paper.py`. Tables and figures of two surveys with our numbers beside theirs: "LLM
Inference Unveiled" (arXiv:2402.16363), which introduced the roofline analysis of LLMs, and "A Survey on Efficient
Inference for Large Language Models" (arXiv:2404.14294). `tests/survey.py` has theirs; `tests/test_ledger.py` has the
claims in their texts, and those of three more surveys. The [tutorial](tutorials/paper.md) explains the figures.

Bounds are exact, and compared to the digits that are printed. Expected times are of measured kernels; to rows that are
marked, one number of the engine was fitted, and to nothing else here.
"""
_FIGURE_4 = """
## Figures 4 to 8 of "LLM Inference Unveiled"

![Figures 4 to 8 as `llmviewer plot` draws them](paper.png)

`llmviewer plot roofline|dtypes|memory|decode-time|prefill-time` draws them for any model and device. The paper prints
axes and captions only, so Figures 6 to 8 are compared with the public tool that drew them, for LLaMA-2-13b on an RTX
A6000.

**Figures 4 and 5**, ridge points: {ridges}. From its FP16 155 TOP/s, INT8 310 TOP/s and 768 GB/s: 201.8 and 403.6 OP/B.
Left of the first, Table 1 has {memory} rows, all memory-bound; right of it {compute}, all compute-bound.

**Figure 6**, memory over the total in FP16; W/KV/act. are the parts of that:

| phase | batch x tokens | FP16 total [GB] | ours | W/KV/act. | ours | W4, W4KV4, W4A4KV4 | ours |
|---|---|---|---|---|---|---|---|
"""
_TABLE_2 = """
## Table 2 of "A Survey on Efficient Inference": complexity

Exponents that we find in the OPs of {lengths} tokens, and of models one, two and four times as wide. Theirs are of the
term that dominates; a Transformer's projections, n d^2 of a prefill and d^2 of a step, are left out there. No
model that ships has S4's layers or decodes by Hyena's convolution.

| model | prefill | ours: mixing tokens | ours: projections | decode step | ours: mixing tokens | ours: projections |
|---|---|---|---|---|---|---|
"""
_TABLE_4 = """
## Table 4 of "A Survey on Efficient Inference": 4-bit weights

Speed-ups of W4A16 (AWQ) over FP16 on an A100, answers as long as prompts, LLaMA-2-7B and 13B at batch 1 to 16 and 128
to 2048 tokens. None of the {cells} decode speed-ups is above our bound; the largest is {closest:.0%} of it. Nothing was
fitted to them. {trusted} cells can be trusted: the paper repeats some rows for other batches, and in some the whole
answer gains more than both of its phases. LMDeploy's kernels were not measured; vLLM's stand in.

| engine | model | | cells | within 15 % | expected / measured: least, median, most |
|---|---|---|---|---|---|
"""
_AFTER_4 = """
Within 15 % are {shares}. The others, by their likely causes:

- Prefills of TensorRT-LLM, 13B from 4,096 tokens on and 7B from 16,384, which lose 16 to 29 % more than expected. There
  the inputs of a product outgrow the L2 cache of 40 MB, and tiles run down the rows first
  (GemmIdentityThreadblockSwizzle<> of fpA_intB_gemm_template.h), so that each column of tiles may read them again. The
  public rows are of a kernel with a scale for each column of weights, which shows no such loss up to 8,192 tokens; AWQ
  runs one with a scale for each group, after a launch that scales its inputs. That launch is counted, and up to 2,048
  tokens of 7B prefills are within 8 %; what the kernel itself loses was not measured.

- Steps of one sequence of 7B, which gain more than expected: 2.0 to 2.4 where ours are 1.7 to 1.9. Below five rows
  TensorRT-LLM runs a kernel on the vector units (SMALL_M_FAST_PATH of weightOnlyGroupwiseQuantMatmulPlugin.cpp), of
  which the public rows take 8 us at least, where those of fp16 take 3.

- Steps of four sequences of 13B with short contexts, which gain 16 to 18 % less: the work of that kernel grows with its
  rows, and with eight rows, on tensor cores, the paper's gain rises again, from 1.80 to 1.86.

- Of LMDeploy one prefill of 128 tokens of 7B, bound by weights, which gains 1.30 where 1.07 are expected.
"""
_TABLE_5 = """
## Table 5 of "A Survey on Efficient Inference": speculative decoding

Speed-ups over Vicuna 7B, 13B and 33B on one A100 at the least and most tokens per pass; two printed maxima are above
their tokens per pass, which cannot be, and are left out.

| method | tokens per pass | speed-up | ours: bound | ours: expected |
|---|---|---|---|---|
"""
_TABLE_6 = """
## Table 6 of "A Survey on Efficient Inference": engines

Tokens per second of LLaMA-2-7B on an A100 80 GB, one sequence, 1024 input and 128 output tokens. Our bound is
{bound:.1f}.

| engine | measured | of the bound | expected | expected / measured |
|---|---|---|---|---|
"""
_AFTER_6 = """
Requests per second of its servers with ShareGPT, as the benchmark of vLLM and LightLLM sends them: 2,000 at 200 a
second, with prompts up to 1,024 tokens, and outputs such that both have at most 2,048 (test/benchmark_serving.py of
github.com/ModelTC/lightllm). No table of the lengths was found: ours are lognormal, with means of 161 and 338 tokens
(arXiv:2309.06180, figure 11) after those limits and, before them, 600 and 1,000 tokens at p95, which is assumed. In the
last column all requests have the means.

| engine | measured | ours: bound | ours: expected | expected / measured | expected with equal requests |
|---|---|---|---|---|---|
"""
_VERSIONS = """
The survey names no versions, and rates follow them more than lengths: vLLM of August 2023 served LLaMA 7B on such an
A100 at 4.62 in this benchmark, and 5.53 to LightLLM's 10.59 in LightLLM's own (github.com/vllm-project/vllm, issue 670;
README of LightLLM); version 0.4.3 of May 2024 served 13.18 of requests with 246 and 195 tokens on a GPU that is not
named (pull 5046). Ours are kernels and hosts of today, so that all but LightLLM, whose kernels stand in from SGLang,
are expected above what was measured, and the ranking is not the survey's.
"""
_REQUESTS = {"lightllm": 10.29, "vllm": 7.11, "deepspeed": 6.78, "tensorrt-llm": 5.87}  # a second
_SHAREGPT = {"prompt_lengths": 161, "gen_lengths": 338}  # means [tokens]
_SPREAD = (600, 1000)  # 95th percentiles of lognormal lengths with those means [tokens]
_LIMITS = (1024, 2048)  # of a prompt, and of a prompt with its output [tokens]
_SENT, _RATE = 2000, 200.0  # requests, a second
_P95 = 1.6448536  # of a standard normal distribution


def main() -> None:
    """Writes the page and its picture."""
    PAGE.write_text(page(), encoding="utf-8")
    picture(PAGE.with_suffix(".png"))


def page() -> str:
    """The page on both surveys."""
    text = _HEAD + table_1() + figures() + table_2() + table_4() + table_5() + table_6()
    return "\n\n".join(map(_filled, text.strip().split("\n\n"))) + "\n"


def table_1() -> str:
    """Table 1 of "LLM Inference Unveiled"."""
    operators = _analyzed_1()
    numbers, agreeing, lines = 0, 0, []
    for (phase, names), printed in PRINTED_1.items():
        for name in names:
            op = operators[phase, name]
            ours = op.per_call.ops, op.per_call.bytes, op.intensity, op.attainable_ops_per_s
            numbers += len(printed)
            agreeing += sum(map(_rounds_to, ours, printed))
            cells = (
                cell for one, other in zip(printed, ours, strict=True) for cell in (one, si(other, 4).replace(" ", ""))
            )
            lines.append([phase, f"`{name}`", *cells, op.bound])
    head = f"""
## Table 1 of "LLM Inference Unveiled"

LLaMA-2-7b in FP16 on an RTX A6000 of 155 TOP/s, one sequence, prefill of 2048 tokens and a decode step at a context of
2048 (`--accounting survey`). **{agreeing} of {numbers} numbers round to the printed ones**, and all bounds agree.

| phase | operator | OPs | ours | bytes | ours | OP/B | ours | OP/s | ours | bound |
|---|---|---|---|---|---|---|---|---|---|---|
"""
    return head + _lines(lines)


def figures() -> str:
    """Figures 4 to 8 of "LLM Inference Unveiled"."""
    rated = load_hardware(_A6000).at_datasheet()
    ridges = (f"{name} {rated.rates[matrix(name)] / rated.bandwidth():.1f} OP/B" for name in ("fp16", "int8"))
    bounds = [op.bound for op in _analyzed_1().values()]
    text = _FIGURE_4.format(ridges=" and ".join(ridges), memory=bounds.count("memory"), compute=bounds.count("compute"))
    text += _lines(map(_memory, FIGURE_6))
    for number, title, axis, theirs, workload in (
        (7, "time of a decode step at a context of 1024 [ms], by batch", BATCHES, FIGURE_7,
         Workload.decode(batch=np.array(BATCHES), kv_len=1024)),
        (8, "time of a prefill of one prompt [ms], by tokens", LENGTHS, FIGURE_8,
         Workload.prefill(batch=1, prompt=np.array(LENGTHS))),
    ):  # fmt: skip
        text += f"\n**Figure {number}**, {title}; theirs, then ours:\n\n| weights | {' | '.join(map(str, axis))} |\n"
        text += f"|{'---|' * (len(axis) + 1)}\n"
        rows = ((quant, *map(_both, times, _survey(quant).plan.time_s(workload) * 1e3)) for quant, times in theirs)
        text += _lines(rows)
    return text


def _both(theirs: float, ours: float) -> str:
    return f"{theirs:.2f}, {ours:.2f}"


def _memory(row: Sequence) -> list[str]:
    """A line of figure 6."""
    phase, batch, tokens, total, split, *shares = row
    step = Workload.decode(batch=batch, kv_len=tokens)
    live = step if phase == "decode" else Workload.prefill(batch=batch, prompt=tokens)

    def parts(quant: str) -> tuple[float, float, float]:
        graph = _survey(quant).graph
        return weight_bytes(graph), float(evaluate(kv_cache(graph), step)), float(activation_bytes(graph, live))

    total_bytes = sum(parts("W16"))
    return [
        phase, f"{batch} x {tokens}", f"{total:.2f}", f"{total_bytes / 1e9:.2f}", _thousandths(split),
        _thousandths(part / total_bytes for part in parts("W16")), _thousandths(shares),
        _thousandths(sum(parts(quant)) / total_bytes for quant in ("W4", "W4KV4", "W4A4KV4")),
    ]  # fmt: skip


def table_2() -> str:
    """Table 2 of the other survey: exponents of OPs."""
    lines = []
    for title, (name, prefill, decode) in TABLE_2.items():
        lines.append([title, prefill, *_exponents(name, "prefill"), decode, *_exponents(name, "decode")])
    setting = Setting.of("stripedhyena-7b", _A100)
    amounts = []
    for n in _TOKENS:
        rows = setting.plan.estimate(Workload.prefill(batch=1, prompt=n)).operators
        amounts.append(sum(float(r.repeat * r.ops) for r in rows if r.operator.name == "long_filter") / (n * log2(n)))
    ours = f"n log n, to {max(amounts) / min(amounts) - 1:.0%}"
    lines.append(["Hyena", "n d log n", ours, "", "n d log n", "", ""])
    lengths = f"{_TOKENS[0]:,} to {_TOKENS[-1]:,}"
    return _TABLE_2.format(lengths=lengths) + _lines(lines)


def _exponents(name: str, phase: str) -> Iterator[str]:
    """Exponents of what mixes tokens, and of projections, of the length and of the width."""
    one = Setting.of(name, _A100)
    workload = Workload.prefill(batch=1, prompt=4096) if phase == "prefill" else Workload.decode(batch=1, kv_len=4096)
    with tempfile.TemporaryDirectory() as folder:
        wide = [Setting.of(scaled(Path(folder), name, scale), _A100).plan_of(phase) for scale in (1, 4)]
    for kinds in (_MIXING, ("linear",)):
        narrow, fourfold = (
            sum(float(row.repeat * row.ops) for row in plan.estimate(workload).operators if row.operator.kind in kinds)
            for plan in wide
        )
        yield f"n^{abs(slope(one, phase, _TOKENS, kinds=kinds)):.2f} d^{log2(fourfold / narrow) / 2:.2f}"


def table_4() -> str:
    """Table 4 of the other survey: counts of its cells within 15 %."""
    with (ROOT / "tests" / "w4a16_speedups.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    ratios: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    closest = 0.0
    for row in rows:
        request = row["model"], int(row["batch"]), int(row["length"])
        full, four = (_generation(*request, quant, _LIBRARIES[row["engine"]]) for quant in (None, "W4A16g128"))
        closest = max(closest, float(row["decode"]) / (full.tpot_s / four.tpot_s))
        for name, field in (("prefill", "ttft"), ("decode", "tpot"), ("whole", "latency")):
            if row["trusted"] == "1":
                before, after = (getattr(one, f"expected_{field}_s") for one in (full, four))
                ratios[row["engine"], row["model"], name].append(before / after / float(row[name]))
    text = _TABLE_4.format(cells=len(rows), closest=closest, trusted=sum(row["trusted"] == "1" for row in rows))
    text += _lines(
        [*key, str(len(each)), str(_near(each)), f"{min(each):.2f}, {median(each):.2f}, {max(each):.2f}"]
        for key, each in ratios.items()
    )
    shares = (
        f"{sum(map(_near, alike))} of {sum(map(len, alike))} of {engine}"
        for engine in _LIBRARIES
        for alike in [[each for (one, _, name), each in ratios.items() if one == engine and name != "whole"]]
    )
    return text + _AFTER_4.format(shares=" and ".join(shares) + " (prefill and decode)")


def _near(ratios: Sequence[float]) -> int:
    return sum(abs(ratio - 1) <= 0.15 for ratio in ratios)


@cache
def _generation(model: str, batch: int, length: int, quant: str | None, library: str) -> Any:
    return analyze(model, _A100, batch=batch, prompt=length, gen=length, quant=quant, library=library).generation


def table_5() -> str:
    """Table 5 of the other survey: speculative decoding."""
    return _TABLE_5 + _lines(_drafting(technique, *theirs) for technique, theirs in TABLE_5.items())


def _drafting(technique: str, least: tuple[float, float], most: tuple[float, float] | None) -> list[str]:
    """A line of table 5."""
    ends = [least, most] if most else [least]
    gains = [_gains(f"{technique}{',' if ':' in technique else ':'}tau={tokens}") for tokens, _ in ends]
    bounds, expected = zip(*(one for several in gains for one in several), strict=True)
    return [
        _NAMES[technique.partition(":")[0]], " to ".join(f"{tokens:.2f}" for tokens, _ in ends),
        " to ".join(f"{speed_up:.2f}" for _, speed_up in ends), f"{min(bounds):.2f} to {max(bounds):.2f}",
        f"{min(expected):.2f} to {max(expected):.2f}",
    ]  # fmt: skip


def _gains(technique: str) -> Iterator[tuple[float, float]]:
    """Speed-ups of the tokens after the first, at the bound and expected, of each model."""
    for name in VICUNA:
        bare, drafted = (
            analyze(name, _A100, techniques=techniques, prompt=128, gen=64).generation
            for techniques in ([], [technique])
        )
        yield bare.tpot_s / drafted.tpot_s, bare.expected_tpot_s / drafted.expected_tpot_s


def table_6() -> str:
    """Table 6 of the other survey: tokens per second of engines."""
    lengths = {"prompt": 1024, "gen": 128}
    bound = analyze("llama-2-7b", _A100, **lengths).generation.tokens_per_s
    lines = []
    rows = {name: find_engine(name).row for name in engine_names()}
    for name, row in sorted(((n, r) for n, r in rows.items() if r), key=lambda one: -one[1].tokens_per_s):
        ours = analyze("llama-2-7b", _A100, engine=name, **lengths).generation.expected_tokens_per_s
        fitted = f" ({row.fitted} fitted)" if row.fitted else ""
        lines.append([f"`{name}`", f"{row.tokens_per_s:.1f}", f"{row.tokens_per_s / bound:.0%}", f"{ours:.1f}{fitted}",
                      f"{ours / row.tokens_per_s:.2f}"])  # fmt: skip
    return _TABLE_6.format(bound=bound) + _lines(lines) + _AFTER_6 + _lines(_serving()) + _VERSIONS


def _serving() -> Iterator[list[str]]:
    """Requests per second of engines in table 6."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "sharegpt.csv"
        trace.write_text(sharegpt(), encoding="utf-8")
        for name, measured in _REQUESTS.items():
            run = simulate("llama-2-7b", _A100, engine=name, arrivals=trace)
            equal = max_throughput("llama-2-7b", load_hardware(_A100), engine=name, **_SHAREGPT)
            rates = [one.requests_per_s for one in (run, run.expected, equal.expected)]
            yield [f"`{name}`", f"{measured:.2f}", f"{rates[0]:.1f}", f"{rates[1]:.1f}", f"{rates[1] / measured:.2f}",
                   f"{rates[2]:.1f}"]  # fmt: skip


def sharegpt() -> str:
    """A trace of requests with lengths like ShareGPT's, as CSV; their means after the limits are those published."""
    generator = np.random.default_rng(0)
    means = np.array(list(_SHAREGPT.values()), dtype=np.float64)
    sigma = _P95 - np.sqrt(_P95**2 - 2 * np.log(_SPREAD / means))  # the smaller root of p95 / mean = exp(z s - s^2 / 2)
    draws = generator.normal(size=(10 * _SENT, 2)) * sigma
    median_of_log = np.log(means) - sigma**2 / 2
    for _ in range(100):  # until the means are those after the limits
        lengths = np.exp(median_of_log + draws)
        sent = lengths[(lengths[:, 0] <= _LIMITS[0]) & (lengths.sum(axis=1) <= _LIMITS[1])]
        median_of_log += np.log(means / sent.mean(axis=0))
    times = generator.exponential(1 / _RATE, _SENT).cumsum()
    rows = zip(times, np.maximum(np.rint(sent[:_SENT]), 1), strict=True)
    return "timestamp,prompt,gen\n" + "".join(f"{at:.6f},{prompt:.0f},{gen:.0f}\n" for at, (prompt, gen) in rows)


@cache
def _analyzed_1() -> dict:
    """The operators of table 1, by phase and name."""
    analysis = analyze(
        "llama-2-7b", _A6000, prompt=2048, kv_len=2048, accounting="survey", hardware_set=("matrix.fp16=155 TOP/s",)
    )
    rows = {(phase, op.name): op for phase, result in analysis.phases for op in result.operators}
    return {(phase, name): rows[phase, name] for phase, names in PRINTED_1 for name in names}


@cache
def _survey(quant: str) -> Setting:
    return Setting.of("llama-2-13b", _A6000, quant=quant, accounting="survey", hardware_set=TOOL)


def _filled(paragraph: str) -> str:
    """A paragraph in lines of equal width, unless it is a table, a heading or a picture."""
    if paragraph.startswith(("|", "#", "!")):
        return paragraph
    return textwrap.fill(paragraph, 120, subsequent_indent="  " * paragraph.startswith("- "))


def _rounds_to(ours: float, printed: str) -> bool:
    """Whether a number has the printed digits."""
    unit = _UNITS.get(printed[-1], 1.0)
    digits = printed.rstrip("KMGT")
    return round(ours / unit, len(digits.partition(".")[2])) == float(digits)


def _thousandths(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:.3f}" for number in numbers)


def _lines(table: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in table)


def picture(file: Path) -> None:
    """Draws figures 4 to 8 as `llmviewer plot` does, two in a row."""
    from llmviewer.webapp.screenshots import browsing, shrink

    charts = [
        draw(name, model="llama-2-7b" if name == "roofline" else "llama-2-13b", hardware=_A6000, batch=1,
             prompt=2048 if name == "roofline" else 1024, phase="prefill", accounting="survey")
        for name in _FIGURES
    ]  # fmt: skip
    for chart in charts:
        chart.update_layout(width=_WIDTH, height=_HEIGHT)
    parts = (
        chart.to_html(include_plotlyjs=not place, full_html=False, config={"staticPlot": True})
        for place, chart in enumerate(charts)
    )
    body = f"<div id='all' style='display:flex;flex-wrap:wrap;width:{2 * _WIDTH}px'>{''.join(parts)}</div>"
    with browsing() as browser:
        view = browser.new_page(viewport={"width": 2 * _WIDTH, "height": 3 * _HEIGHT})
        view.set_content(f"<html><body style='margin:0;background:white'>{body}</body></html>")
        view.wait_for_selector(".main-svg")
        view.locator("#all").screenshot(path=file)
    shrink(file)


if __name__ == "__main__":
    main()
