"""Compares simulations with InferenceX: writes docs/inferencex.md and .png from tests/inferencex.csv.

Run as `python benchmarks/inferencex.py`, which takes some ten minutes of a core, and a Chromium for the picture.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":  # or the path of who imports it would change
    sys.path.insert(0, str(ROOT))

from tests.inferencex import DRAFTED, ROWS, Drafts, Found, drafts, found, is_former, is_scored  # noqa: E402

_PAGE = ROOT / "docs" / "inferencex.md"
_PICTURED = (  # model, device, engine, layout, format; prompts and answers of 1024
    ("gpt-oss-120b", "h100-sxm", "vllm", "tp=4", "4 bits"), ("gpt-oss-120b", "b200", "vllm", "tp=2", "4 bits"),
    ("deepseek-r1", "h200-sxm", "tensorrt-llm", "tp=8", "8 bits"),
    ("deepseek-r1", "b200", "tensorrt-llm", "tp=8", "4 bits"),
    ("deepseek-r1", "mi355x", "atom", "tp=8", "8 bits"), ("deepseek-r1", "mi300x", "sglang", "tp=8", "8 bits"),
)  # fmt: skip
_LENGTH, _WIDTH, _HEIGHT = "1024", 1200, 640  # tokens, px, px
_MIN_LARGE_CONCURRENCY = 32  # requests in flight
_FLIGHT = (4, 8, 16, 32, 64, 128, 256)
_TITLES = {"deepseek-r1": "DeepSeek-R1", "gpt-oss-120b": "gpt-oss 120B"}
_INTRO = """# Against InferenceX

Written by `python benchmarks/inferencex.py`. InferenceX (SemiAnalysis, formerly InferenceMAX) runs open-source
servers on rented devices regularly and publishes their throughput. {count:,} of its results are compared with `simulate
--concurrency` and `--engine`:

{models}

`tests/inferencex.csv` has each with its date, `tests/inferencex.py` its sources and how they are compared. **Nothing
was fitted to them** but TensorRT-LLM's host time of a launch in prefills and the [intervals of
servers](#intervals-of-servers), to half of them.

**None serves more than the bound**: the closest reaches {closest:.0%} of it. Half of the expected throughputs are
within {half:.0%} of the measured one, and {quarter:.0%} are within a quarter; of the decode steps of
disaggregated servers half are within {half_apart:.0%}, and {quarter_apart:.0%} within a quarter.

![Throughput of each device against the speed of a request: measured, expected and at the bound](inferencex.png)

1024 input and 1024 output tokens; the last panel is one of the cases that are far off.

Ratios are expected over measured time per token of the throughput (input and output), so 1.2 is expected too slow:
smallest, median, largest. `step` is the median ratio of the TPOT of a request. `of the bound` is the throughput over
that at the bound.

## Servers that prefill and decode

| model | device | engine | format | results | expected / measured | step | of the bound |
|---|---|---|---|---|---|---|---|
"""
_FLIGHTS = """
By requests in flight, medians of expected over measured:

| model | device | engine | format | {flight} |
|---|---|---|---|{rules}|
"""
_DISAGGREGATED = """
## Disaggregated servers: decode steps

Other devices prefill, so that a step only decodes. The decode batch follows from the published throughput and TPOT
(Little's law); ratios are of TPOT. `tp` is tensor parallelism, with expert parallelism or not; `dp` is data-parallel
attention with the experts on all devices (wide expert parallelism). Six `dp` results on B300 divide experts by tensor
parallelism, which moves as many bytes per device.

| device | engine | format | layout | results | expected / measured | of the bound |
|---|---|---|---|---|---|---|
"""
_FIRST = """
## Time to first token

Ratios are expected over published TTFT: the median of all requests for DeepSeek-R1, the mean for gpt-oss, as their
sources state them, of ten requests of each client that begin together (`--client inferencex`). SGLang's runs look for
requests once in 10 decode steps on B200 and B300, or 30 with 16 clients or more, and read prompts in chunks as their
scripts set them. TensorRT-LLM's prompts of 1024 tokens in 8 bits wait for others with 64 and 128 in flight
([held back](serving.md#prompts-that-are-held-back)), as its script sets `batch_wait_timeout_iters`; vLLM's experts on
H100 and H200 are Marlin's (`VLLM_MXFP4_USE_MARLIN`, here `--experts-kernel marlin`). What lies between clients and
steps is in [serving.md](serving.md#time-to-first-token); one of its numbers, TensorRT-LLM's host time of a launch in
prefills, was fitted to half of the settings, chosen by a hash of their names. The other half was computed once then,
once when fused launches were expected, once when ranks waited for the one with most experts and these two settings
were taken from the scripts, once when Marlin's kernels started as with other models, and once when the tokens of
prompts on B300 were those of the server ([below](#where-it-is-off-and-why)):

| engine | input tokens | results | error: median, mean | bias (median ratio) | {flight} |
|---|---|---|---|---|{rules}|
"""
_FIRST_DEVELOPED = """
The half on which this was developed:

| engine | input tokens | results | error: median, mean | bias (median ratio) | {flight} |
|---|---|---|---|---|{rules}|
"""
_INTERVALS = """
## Intervals of servers

Brackets of expected times cover kernels alone. Of whole servers these are wider: eight of ten results of the half on
which TTFT was developed are within these multiples of the expected TPOT and TTFT. The columns on the right have how
many of the other half are within them.

| engine | device | measured / expected TPOT | measured / expected TTFT | results | TPOT within | TTFT within |
|---|---|---|---|---|---|---|
"""
_DRAFTS = """
## Speculative decoding

{count} results use DeepSeek's prediction layer (MTP) to draft tokens, and are compared with the same settings without.
`sooner` is the measured speed-up of TPOT, `longer` the expected ratio of the times of a pass; their product is the
tokens per pass (accepted length) that would explain both, which is not published. Medians.

| device | engine | format | drafted | results | sooner | longer | tokens per pass, up to 16 in flight | from 32 on |
|---|---|---|---|---|---|---|---|---|
"""
_DRAFTED = """
So one drafted token is accepted in 8 of 10 cases, as in DeepSeek's paper (1.85 tokens per pass, the default of `mtp`).
SGLang drafts for prompts of random tokens without a chat template here, which are harder to predict. With higher
concurrency fewer tokens follow: published TPOT includes prefills, which drafts do not shorten.
"""
_WEAK = """
## Where it is off, and why

- **MI300X and MI325X** are expected 1.6 times too fast at any number of requests: no kernel was measured on them, and
  expected times are transferred from MI355X and from other vendors. Both take 24 ms a token with four requests in
  flight, although their memories differ by an eighth, so launches take the time. MLPerf's results of MI300X are as far
  off ([serving.md](serving.md#against-mlperf)).
- **8 bits on B200 and B300** are expected up to 1.6 times too slow without expert parallelism. SGLang's measured
  products with scales of blocks take some 20 us, the kernels that these runs use (`SGLANG_ENABLE_FLASHINFER_GEMM`) 8
  us as measured with TensorRT-LLM. TensorRT-LLM's experts in 8 bits were measured with DeepGEMM, and these runs use
  its own kernels.
- **gpt-oss on H100 and H200 with vLLM**: Marlin's kernel was measured with another model's experts only, of which a
  layer has 896. It starts on gpt-oss as vLLM's Marlin does on many models in int4
  ([ASSUMPTIONS.md](../ASSUMPTIONS.md)); with the start of 896 experts, steps would be expected 1.2 times too slow.
  Prompts are expected a tenth too fast. These runs are of vLLM of January 2026 (`--engine-version 0.13`), which fuses
  no all-reduces by default; B200's script asks for it.
- **TensorRT-LLM's results name layouts that may not be what ran.** In 4 bits with tensor parallelism and 256 in
  flight, or from 64 with prompts of 8192, TTFTs of 1.4 to 2 s are those of prompts that are held back for others,
  though these results name no data parallelism. All are of November 2025. The script of that model chose expert
  parallelism by itself, from the number of requests (`benchmarks/dsr1_fp4_b200_trt_slurm.sh`, commit 07d82b1), and
  takes both from outside since (commit b5ebafa). The source of gpt-oss has no column for attention in data parallel,
  and has several settings twice in one run, such as four devices with 64 in flight in run 20308883467, with mean TTFTs
  of 64 and 143 ms: one of them must have it, which its script offers with experts divided or not. They are left as the
  sources name them.
- **H200 with SGLang** is expected 1.2 to 1.4 times too slow: its measured experts alone take as long as two thirds of
  the whole step. Prompts of random tokens, as these, reach fewer experts than independent choices would.
- **SGLang on B300** had prompts of five times as many tokens as these results name. transformers 5 gives DeepSeek-R1's
  tokenizer another pre-tokenizer; SGLang mends it when it starts, and the benchmark's client did not: 7,140 tokens of
  the client were 35,921 of the server ([InferenceX, pull 937](https://github.com/SemiAnalysisAI/InferenceX/pull/937)).
  These runs, of April 2026, have an image with transformers 5, and pull 1502 had them repeated with the client mended.
  They are simulated with 5.03 times the prompts, and their throughput counts tokens of the client, as published. In 4
  bits TTFT and TPOT are then expected within a fifth in the median, and 26 of the 45 s with 128 in flight, which wait
  for KV cache; with the stated lengths TTFT was expected up to nine times too short, and the kernels were blamed
  ([SGLang, issue 23061](https://github.com/sgl-project/sglang/issues/23061)).
- **MI355X, DeepSeek-R1 in 4 bits on four devices with SGLang**: results of October 2025 are twice as slow as those of
  February 2026, which the expected times meet.
- **Data-parallel attention on MI355X, and 16 H100 in two nodes**, take 1.3 to 2 times as long as expected: all-to-alls
  were not measured there, but for DeepEP's set-up.
- **Data-parallel attention on one server** (TensorRT-LLM) is computed with prompts that ranks hold back for each
  other, as in these runs ([serving.md](serving.md#prompts-that-are-held-back)); without, prompts of 8192 tokens would
  be expected up to twice too slow. The bound is with chunks of 2048 tokens if that is less.
- **Experts divided among ranks** with 4 requests in flight: the rank that reads most experts is counted
  ([parallel.md](parallel.md)), without which H200's steps with TensorRT-LLM were expected in 0.73 of the measured time
  (now 0.84).
- **TTFT of long prompts on MI355X** is expected a third too short: prefills of 8192 tokens take 0.36 to 0.5 s there.
- **SGLang with B200 in 4 bits, November 2025**: TTFTs are 0.15 to 0.4 s longer than in March 2026, with the same
  options in both scripts (commits b5ebafa and 1fc5d73). The image was that of v0.5.3rc1, and `--enable-symm-mem` is
  among the options: there, each tensor that is allocated for an all-reduce lists the whole memory pool on the host
  (`pynccl_allocator.py`, `get_nccl_mem_pool().snapshot()`), some 120 times in a prefill without CUDA graph, which pull
  12524 removed in v0.5.5 ([SGLang](https://github.com/sgl-project/sglang/pull/12524)). How long it takes is not
  published; the table of TTFTs has a line without these 36 results.
- **Prompts of 1024 tokens with SGLang** take as long as their launches, which depends on the CPU of a node: with the
  same software, DeepSeek-R1 in 8 bits takes 167 ms on MI300X, 115 on MI325X and 106 on MI355X, with 4 in flight. 106 to
  110 are expected of them. The results do not name the CPU.
- **TensorRT-LLM's TTFTs** differ as much between December 2025 (84 to 109 ms) and February 2026 (145 to 149 ms).
  Expected times have one version of each engine.
- What does not matter: `--stream-interval` and `stream_interval` send the first token at once in all three engines
  (vLLM's pull 27869, TensorRT-LLM's pull 5836).
"""


def main() -> None:
    """Writes the page on published serving results and its picture."""
    with multiprocessing.Pool() as pool:
        ratios = pool.map(found, ROWS, chunksize=8)
        draft_results = pool.map(drafts, DRAFTED, chunksize=8)
    write(list(zip(ROWS, ratios, strict=True)), draft_results)


def write(results: Sequence[tuple[Mapping[str, str], Found]], draft_results: Sequence[Drafts]) -> None:
    """Writes the page and its picture from the times of all results."""
    colocated = [one for one in results if not one[0]["decoding"]]
    disaggregated = [one for one in results if one[0]["decoding"]]
    (half, quarter), (half_apart, quarter_apart) = (_near(each) for each in (colocated, disaggregated))
    models = (
        f"- {title}: {sum(row['model'] == name for row in ROWS)} results on {_devices(name)}"
        for name, title in _TITLES.items()
    )
    page = _INTRO.format(
        count=len(ROWS), models="\n".join(models), closest=max(each.served[0] for _, each in results), half=half,
        quarter=quarter, half_apart=half_apart, quarter_apart=quarter_apart,
    )  # fmt: skip
    groups = grouped(colocated, ("model", "device", "engine", "format"))
    page += _lines([*_named(key), *cells(ratios, steps=True)] for key, ratios in groups.items())
    page += _FLIGHTS.format(flight=" | ".join(map(str, _FLIGHT)), rules="|".join(["---"] * len(_FLIGHT)))
    page += _lines([*_named(key), *_by_flight(colocated, key)] for key in groups)
    for text, scored in ((_FIRST, True), (_FIRST_DEVELOPED, False)):
        page += text.format(flight=" | ".join(map(str, _FLIGHT)), rules="|".join(["---"] * len(_FLIGHT)))
        page += _lines(first_tokens([one for one in colocated if is_scored(one[0]) is scored]))
    page += _INTERVALS + _lines(server_intervals(colocated))
    page += _DISAGGREGATED
    groups = grouped(disaggregated, ("device", "engine", "format", "kind"))
    page += _lines([*_named(key), *cells(ratios)] for key, ratios in groups.items())
    page += _DRAFTS.format(count=len(DRAFTED)) + _lines(_with_drafts(draft_results)) + _DRAFTED
    _PAGE.write_text(page + _WEAK, encoding="utf-8")
    picture(colocated, _PAGE.with_suffix(".png"))


def key_of(row: Mapping[str, str], names: Sequence[str]) -> tuple[str, ...]:
    """The key of a table row: the values of `names` in a row of the data."""
    values = {
        **row, "format": "4 bits" if "fp4" in row["quant"] or row["model"] == "gpt-oss-120b" else "8 bits",
        "kind": row["layout"].partition("=")[0] or "tp",
    }  # fmt: skip
    return tuple(values[name] for name in names)


def grouped(
    results: Iterable[tuple[Mapping[str, str], Found]], names: Sequence[str]
) -> dict[tuple[str, ...], list[Found]]:
    """Results by the values of `names` in their rows."""
    groups = defaultdict(list)
    for row, ratios in results:
        groups[key_of(row, names)].append(ratios)
    return dict(groups)


def cells(ratios: Sequence[Found], *, steps: bool = False) -> list[str]:
    """Numbers of a line."""
    expected, bounds = [each.served[1] for each in ratios], [each.served[0] for each in ratios]
    between = f"{min(expected):.2f}, {median(expected):.2f}, {max(expected):.2f}"
    step = [f"{median(each.token[1] for each in ratios):.2f}"] if steps else []
    return [str(len(ratios)), between, *step, f"{min(bounds):.2f} to {max(bounds):.2f}"]


def first_tokens(results: Sequence[tuple[Mapping[str, str], Found]]) -> Iterator[list[str]]:
    """Lines on TTFT, by engine and input tokens, and of all but former versions where there are some."""
    engines = dict.fromkeys(row["engine"] for row, _ in results)
    for engine in sorted(engines):
        of_engine = [one for one in results if one[0]["engine"] == engine]
        groups = {prompt: [one for one in of_engine if one[0]["prompt"] == prompt] for prompt in ("1024", "8192")}
        groups["all"] = of_engine
        if any(is_former(row) for row, _ in of_engine):
            groups["all, without 0.5.3"] = [one for one in of_engine if not is_former(one[0])]
        for name, group in groups.items():
            ratios = [each.first[1] for _, each in group]
            errors = [abs(ratio - 1) for ratio in ratios]
            flights = ([each.first[1] for row, each in group if int(row["concurrency"]) == n] for n in _FLIGHT)
            yield [
                f"`{engine}`", name, str(len(group)), f"{median(errors):.0%}, {mean(errors):.0%}",
                f"{median(ratios):.2f}", *(f"{median(flight):.2f}" if flight else "" for flight in flights),
            ]  # fmt: skip


def server_intervals(results: Sequence[tuple[Mapping[str, str], Found]]) -> Iterator[list[str]]:
    """Lines on the intervals of servers: those of the half that was developed on, and how many of the other half they
    hold, by engine and device.
    """
    flags_of_all: list[list[bool]] = []
    for engine in sorted({row["engine"] for row, _ in results}):
        developed, scored = (
            [one for one in results if one[0]["engine"] == engine and is_scored(one[0]) is half]
            for half in (False, True)
        )
        spans = [_span([1 / ratio(each) for _, each in developed]) for ratio in _SPREADS]
        flags = [
            [low <= 1 / ratio(each) <= high for ratio, (low, high) in zip(_SPREADS, spans, strict=True)]
            for _, each in scored
        ]
        flags_of_all += flags
        yield [f"`{engine}`", "all", *(f"{low:.2f} to {high:.2f}" for low, high in spans), *_coverage(flags)]
        for device in sorted({row["device"] for row, _ in scored}):
            of_device = [each for (row, _), each in zip(scored, flags, strict=True) if row["device"] == device]
            yield [f"`{engine}`", f"`{device}`", *[""] * len(spans), *_coverage(of_device)]
    yield ["all", "all", *[""] * len(_SPREADS), *_coverage(flags_of_all)]


def _coverage(flags: Sequence[Sequence[bool]]) -> list[str]:
    """The number of results, and how many of them each interval holds, by flags of each result."""
    return [str(len(flags)), *(f"{mean(column):.0%}" for column in zip(*flags, strict=True))]


_SPREADS: tuple[Callable[[Found], float], ...] = (lambda each: each.token[1], lambda each: each.first[1])


def _span(values: Sequence[float]) -> tuple[float, float]:
    """The ends between which eight of ten values are."""
    ordered = sorted(values)
    low, high = (ordered[round(part * (len(ordered) - 1))] for part in (0.1, 0.9))
    return low, high


def _by_flight(results: Iterable[tuple[Mapping[str, str], Found]], key: tuple[str, ...]) -> list[str]:
    ratios_by_flight: dict[int, list[float]] = defaultdict(list)
    for row, ratios in results:
        if key_of(row, ("model", "device", "engine", "format")) == key:
            ratios_by_flight[int(row["concurrency"])].append(ratios.served[1])
    return [f"{median(ratios_by_flight[count]):.2f}" if ratios_by_flight[count] else "" for count in _FLIGHT]


def _named(key: Iterable[str]) -> list[str]:
    return [_TITLES.get(name, f"`{name}`" if name.islower() and " " not in name else name) for name in key]


def _with_drafts(draft_results: Sequence[Drafts]) -> Iterator[list[str]]:
    groups: dict[tuple[str, ...], list[tuple[int, Drafts]]] = defaultdict(list)
    for row, each in zip(DRAFTED, draft_results, strict=True):
        groups[key_of(row, ("device", "engine", "format", "drafted"))].append((int(row["concurrency"]), each))
    for key, group in groups.items():
        sides = (
            [each for count, each in group if (count >= _MIN_LARGE_CONCURRENCY) == large] for large in (False, True)
        )
        tokens = [f"{median(each.tokens for each in side):.2f}" for side in sides]
        times = [f"{median(getattr(each, name) for _, each in group):.2f}" for name in ("sooner", "longer")]
        yield [*_named(key), str(len(group)), *times, *tokens]


def picture(results: Sequence[tuple[Mapping[str, str], Found]], file: Path) -> None:
    """Draws tokens per second per device over tokens per second of one request, for some settings."""
    from plotly.subplots import make_subplots

    from llmviewer.reports.drawing import BLUE, INK, VERMILLION, frame, log_axis
    from llmviewer.reports.tables import digits
    from llmviewer.webapp.screenshots import browsing, shrink

    names = [f"{_TITLES[model]}, {device} {layout}, {engine}" for model, device, engine, layout, _ in _PICTURED]
    chart = make_subplots(rows=2, cols=3, subplot_titles=names, horizontal_spacing=0.07, vertical_spacing=0.17)
    styles = {
        "measured": (None, {"mode": "markers", "marker": {"color": INK, "size": 9}}),
        "expected": (1, {"mode": "lines+markers", "line": {"color": BLUE, "width": 2}, "marker": {"size": 5}}),
        "at the bound": (0, {"mode": "lines", "line": {"color": VERMILLION, "width": 1.5, "dash": "dash"}}),
    }  # fmt: skip
    for place, key in enumerate(_PICTURED):
        panel_results = [
            (row, each)
            for row, each in results
            if key_of(row, ("model", "device", "engine", "layout", "format")) == key
            and row["prompt"] == row["gen"] == _LENGTH
        ]
        panel_results.sort(key=lambda one: int(one[0]["concurrency"]))
        cell = {"row": place // 3 + 1, "col": place % 3 + 1}
        speeds, served = [], []
        for name, (side, style) in styles.items():
            x, y = zip(*(_point(row, each, side) for row, each in panel_results), strict=True)
            chart.add_scatter(x=x, y=y, name=name, legendgroup=name, showlegend=not place, **cell, **style)
            speeds.extend(x)
            served.extend(y)
        chart.update_xaxes(**log_axis(speeds, digits, max_ticks=4), **cell)
        chart.update_yaxes(**log_axis(served, digits), **cell)
    chart.update_layout(
        template=frame("", "").layout.template, width=_WIDTH, height=_HEIGHT, legend={"orientation": "h", "y": -0.14},
        margin={"t": 40, "b": 90, "l": 70, "r": 20},
    )  # fmt: skip
    chart.update_annotations(font_size=14)
    chart.update_xaxes(title_text="tokens/s of a request", title_standoff=4)
    chart.update_yaxes(title_text="tokens/s of each device", col=1)
    with browsing() as browser:
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        page.set_content(chart.to_html(include_plotlyjs=True, config={"staticPlot": True}))
        page.wait_for_selector(".main-svg")
        page.locator(".plotly-graph-div").screenshot(path=file)
    shrink(file)


def _point(row: Mapping[str, str], each: Found, side: int | None) -> tuple[float, float]:
    """Tokens a second of a request, and of each device with those of prompts: measured, at the bound, or expected."""
    speed, served = 1 / float(row["tpot_s"]), float(row["tokens_per_s"])
    return (speed, served) if side is None else (speed / each.token[side], served / each.served[side])


def _near(results: Sequence[tuple[Mapping[str, str], Found]]) -> tuple[float, float]:
    """The median error, and the part that is within a quarter."""
    errors = [abs(each.served[1] - 1) for _, each in results]
    return median(errors), sum(error < 0.25 for error in errors) / len(errors)


def _devices(model: str) -> str:
    return ", ".join(f"`{name}`" for name in sorted({row["device"] for row in ROWS if row["model"] == model}))


def _lines(table: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in table)


if __name__ == "__main__":
    main()
