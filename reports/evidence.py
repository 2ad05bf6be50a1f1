"""Published results of techniques and ours: a table of docs/techniques.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cached_property
from math import inf
from typing import Any, Final

from llmviewer.analyzing.analysis import Analysis, analyze
from llmviewer.records import frozen
from llmviewer.setting import Setting
from llmviewer.workload import Workload

_S0: Final = '"Large Language Model Inference" (2025)'
_S2: Final = "arXiv:2407.09111"
_S3: Final = "arXiv:2402.16363"
_S4: Final = "arXiv:2404.14294"
_TABLE_4: Final = f"{_S4}, table 4"
_TABLE_5: Final = f"{_S4}, table 5"


@frozen(kw_only=True)
class Evidence:
    """A published number and ours.

    id           claim, as in tests/test_ledger.py
    technique    value of --with; several are separated by spaces
    ours         our number, from the analysis
    words        format of the sentence on our number
    theirs       the published result, in words
    least, most  limits of our number if the published one is right
    measured     speed-up measured on that device; a bound is never below it
    """

    id: str
    technique: str
    ours: Callable[[Analysis], float]
    words: str
    theirs: str
    source: str
    least: float = -inf
    most: float = inf
    measured: float | None = None
    model: str = "llama-7b"
    hardware: str = "a100-sxm-80gb"
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def found(self) -> float:
        """Our number."""
        return self.ours(analyze(self.model, self.hardware, techniques=self.technique.split(), **self.options))

    @property
    def possible(self) -> bool:
        """Whether our number is within its limits."""
        return max(self.least, self.measured or -inf) <= self.found <= self.most

    @property
    def text(self) -> str:
        """Our number, in words."""
        measured_ratio = f", {self.found / self.measured:.2f} times the measured gain" if self.measured else ""
        return self.words.format(self.found) + measured_ratio

    @property
    def knob(self) -> str:
        """The arguments of `llmviewer analyze`."""
        named = (f"--with {one}" for one in self.technique.split())
        options = (f"--{name.replace('_', '-')} {value}" for name, value in self.options.items())
        return " ".join((self.model, self.hardware, *named, *options))


_FASTER: Final = "decode {:.2f}x as fast"


def _decoding(analysis: Analysis) -> float:
    """Speed-up of the tokens after the first."""
    assert analysis.effect
    with_technique, without = analysis.effect.result.tpot_s, analysis.effect.without.tpot_s
    return without / with_technique if with_technique and without else 1.0


def _first_token(analysis: Analysis) -> float:
    """Speed-up of the first token."""
    assert analysis.effect
    return analysis.effect.without.ttft_s / analysis.effect.result.ttft_s


def _expected_first_token(analysis: Analysis) -> float:
    """Speed-up of the first token by the expected times."""
    before = _analyze_again(analysis, techniques=()).generation.expected_ttft_s
    after = analysis.generation.expected_ttft_s
    assert before
    assert after
    return before / after


def _speed_up(analysis: Analysis) -> float:
    assert analysis.effect
    return analysis.effect.speed_up


def _finding(key: str) -> Callable[[Analysis], float]:
    def ours(analysis: Analysis) -> float:
        assert analysis.effect
        value = analysis.effect.findings[key]
        assert value is not None
        return value

    return ours


def _analyze_again(analysis: Analysis, **changes: Any) -> Analysis:
    """The same analysis with some arguments changed."""
    arguments = {name: analysis.inputs[name] for name in ("batch", "prompt", "gen", "techniques")}
    return analyze(analysis.model, analysis.hardware.name, **(arguments | changes))


def _better_draft(analysis: Analysis) -> float:
    (technique,) = analysis.inputs["techniques"]
    return _decoding(analysis) / _decoding(
        _analyze_again(analysis, techniques=[technique.replace("alpha=0.7", "alpha=0.6")])
    )


def _weights_gb(analysis: Analysis) -> float:
    return analysis.memory.weight_bytes / 1e9


def _weights_part(analysis: Analysis) -> float:
    return analysis.memory.weight_bytes / _analyze_again(analysis, techniques=()).memory.weight_bytes


def _cache_gb(analysis: Analysis) -> float:
    return analysis.memory.kv_cache_bytes / 1e9


def _parameters(analysis: Analysis) -> float:
    """Parameters with the technique. [billion]"""
    return (
        Setting.of(analysis.model, analysis.hardware, techniques=analysis.inputs["techniques"]).graph.parameters / 1e9
    )


def _throughput(analysis: Analysis) -> float:
    """Tokens per second at the largest batch that fits, relative to those without techniques."""
    full = (
        _analyze_again(analysis, techniques=techniques).memory.max_batch
        for techniques in (analysis.inputs["techniques"], ())
    )
    ours, theirs = (
        _analyze_again(analysis, batch=batch, techniques=techniques).generation.tokens_per_s
        for batch, techniques in zip(full, (analysis.inputs["techniques"], ()), strict=True)
    )
    return ours / theirs


def _with_decoding(analysis: Analysis) -> float:
    """Speed-up of a chunk and a decode step of the batch in one pass over two passes."""
    plan = Setting.of(analysis.model, analysis.hardware).plan
    chunk = Workload.chunk(batch=1, chunk=analysis.phases.prefill.q_len, past=0)
    step = Workload.decode(batch=analysis.request.batch, kv_len=analysis.request.prompt)
    return float((plan.time_s(chunk) + plan.time_s(step)) / plan.time_s(chunk + step))


def _teacher(analysis: Analysis) -> float:
    """Speed-up of a prefill over the model that this one was distilled from."""
    teacher = analyze("bert-base-uncased", analysis.hardware.name, prompt=analysis.request.prompt)
    return teacher.phases.prefill.total.bound_time_s / analysis.phases.prefill.total.bound_time_s


EVIDENCE: Final = (
    Evidence(
        id="Q-S4-12", technique="speculative:draft=llama-68m,gamma=4,tau=2.02", ours=_decoding, words=_FASTER,
        measured=1.77, most=2.02, theirs="2.02 tokens per pass, 1.77x", source=_TABLE_5,
    ),
    Evidence(
        id="Q-S4-12", technique="lookahead:tau=2.14", ours=_decoding, words=_FASTER, measured=1.30, most=2.14,
        theirs="2.14 tokens per pass, 1.30x", source=_TABLE_5,
    ),
    Evidence(
        id="Q-S4-12", technique="self-speculative:tau=1.74", ours=_decoding, words=_FASTER, model="llama-30b",
        measured=1.23, most=1.74, theirs="1.74 tokens per pass, 1.23x", source=_TABLE_5,
    ),
    Evidence(
        id="Q-S4-12", technique="retrieval:tau=2.31", ours=_decoding, words=_FASTER, measured=2.27, most=2.31,
        theirs="2.31 tokens per pass, 2.27x", source=_TABLE_5, model="llama-30b",
    ),
    Evidence(
        id="Q-S4-12", technique="medusa:tau=2.52", ours=_decoding, words=_FASTER, measured=2.04, most=2.52,
        theirs="2.52 tokens per pass, 2.04x", source=_TABLE_5, model="llama-13b",
    ),
    Evidence(
        id="Q-S4-12", technique="eagle:version=1,tau=3.47", ours=_decoding, words=_FASTER, measured=2.77, most=3.47,
        theirs="3.47 tokens per pass, 2.77x", source=_TABLE_5, model="llama-13b",
    ),
    Evidence(
        id="Q-S2-07", technique="retrieval:length=4,tau=1", ours=_finding("verification_over_step"),
        words="a verification takes {:.3f} times as long as a decode step", least=1, most=1.05,
        theirs="negligible additional latency", source=f"{_S2}, section 5", model="llama-2-7b",
        options={"batch": 32, "prompt": 1023},
    ),
    Evidence(
        id="Q-S3-11", technique="speculative:draft=llama-68m,gamma=5,alpha=0.7", ours=_better_draft,
        words="{:.2f}x the decode rate at acceptance rate 0.6", least=1.10, most=1.45,
        theirs="10 to 45 % by distilling the draft", source=f"{_S3}, section 4.2.1",
    ),
    Evidence(
        id="Q-S3-07", technique="contextual-sparsity:active=0.2,heads=0.5", ours=_decoding, words=_FASTER,
        least=2, most=5, theirs="over 2x for OPT-175B on several devices", source=f"{_S3}, section 4.1.2",
        model="opt-30b",
    ),
    Evidence(
        id="Q-S3-08", technique="early-exit:exit=0.25,stay=0.1", ours=_decoding, words=_FASTER, least=2, most=4,
        theirs="up to 2x", source=f"{_S3}, section 4.1.1",
    ),
    Evidence(
        id="Q-S3-12, Q-S4-06", technique="skeleton", ours=_speed_up, words="answer {:.2f}x as fast", least=2.39,
        most=8, theirs="up to 2.39x, about 2x", source=f"{_S4}, section 4.2; {_S3}, section 4.2.2",
        options={"gen": 512},
    ),
    Evidence(
        id="Q-S4-06", technique="fork", ours=_decoding, words=_FASTER, least=1.4, most=2,
        theirs="1.4x to 2.0x on average (APAR)", source=f"{_S4}, section 4.2", options={"prompt": 128, "gen": 512},
    ),
    Evidence(
        id="Q-S3-12", technique="fork medusa", ours=_decoding, words=_FASTER, least=4,
        theirs="4x for APAR with Medusa", source=f"{_S3}, section 4.2.2", options={"prompt": 128, "gen": 512},
    ),
    Evidence(
        id="Q-S0-05", technique="paged:block=16", ours=_finding("cache_waste"), words="{:.1%} of the memory unused",
        most=0.01, theirs="close to 100 % of the memory used", source=_S0, model="llama-2-7b", options={"prompt": 2000},
    ),
    Evidence(
        id="Q-S2-01", technique="quantized:scheme=fp8-kv", ours=_throughput,
        words="{:.2f}x the tokens per second at the largest batch", measured=1.49, most=2,
        theirs="1.49x the throughput", source=f"{_S2}, section 2.4", options={"prompt": 1024, "gen": 1024},
    ),
    Evidence(
        id="Q-S2-06", technique="chunked-prefill", ours=_cache_gb, words="cache {:.1f} GB, weights 13.5 GB",
        most=85.9 - 13.5, theirs="a million tokens on one A100 80 GB", source=f"{_S2}, section 2.1",
        options={"quant": "KV2", "prompt": 999_999, "gen": 1},
    ),
    Evidence(
        id="Q-S4-08", technique="streaming chunked-prefill", ours=_cache_gb,
        words="cache {:.2f} GB, as for 2048 tokens", most=1.1,
        theirs="4 million tokens", source=f"{_S4}, section 5.3", model="llama-2-7b",
        options={"prompt": 4_000_000},
    ),
    Evidence(
        id="Q-S4-05", technique="quantized:scheme=awq", ours=_decoding, words=_FASTER, measured=2.40,
        theirs="2.40x with TensorRT-LLM, 2.11x with LMDeploy", source=_TABLE_4, model="llama-2-7b",
        options={"prompt": 128},
    ),
    Evidence(
        id="Q-S4-05", technique="quantized:scheme=awq", ours=_decoding, words=_FASTER, measured=1.50,
        theirs="1.46x with TensorRT-LLM, 1.50x with LMDeploy", source=_TABLE_4, model="llama-2-13b",
        options={"batch": 16, "prompt": 1024, "gen": 1024},
    ),
    Evidence(
        id="Q-S4-16", technique="quantized:scheme=awq", ours=_expected_first_token,
        words="expected first token {:.2f}x as fast", least=0.75, most=0.96,
        theirs="0.75x to 0.96x above 256 tokens", source=_TABLE_4, model="llama-2-7b",
        options={"batch": 2, "prompt": 1024},
    ),
    Evidence(
        id="Q-S3-04", technique="quantized:scheme=llm.int8", ours=_weights_part, words="weights {:.3f} times the bytes",
        least=0.5, most=0.52, theirs="half the memory", source=f"{_S3}, section 3.1", model="llama-13b",
    ),
    Evidence(
        id="Q-S4-07", technique="quantized:scheme=qlora", ours=_weights_gb,
        words="weights {:.1f} GB with scales and adapters",
        least=30, most=37, theirs="65 billion parameters in 30 GB", source=f"{_S4}, section 5.2.1", model="llama-65b",
    ),
    Evidence(
        id="Q-S4-07", technique="quantized:scheme=billm", ours=_weights_part, words="weights {:.3f} times the bytes",
        least=1.08 / 16, most=0.12, theirs="1.08 bits per weight", source=f"{_S4}, section 5.2.1",
    ),
    Evidence(
        id="Q-S0-09", technique="sparsity", ours=_first_token, words="first token {:.2f}x as fast", least=1, most=2,
        theirs="units for 2:4, twice the peak", source=_S0, model="llama-2-7b", options={"prompt": 2048},
    ),
    Evidence(
        id="Q-S3-06", technique="pruning:sparsity=0.6,format=bitmap", ours=_weights_part,
        words="weights {:.3f} times the bytes", least=0.4, most=0.5,
        theirs="50 to 60 % of the weights zero (SparseGPT)", source=f"{_S3}, section 3.2.1",
    ),
    Evidence(
        id="Q-S3-06", technique="structured-pruning:heads=0.75,ffn=0.75,first=4,last=2", ours=_parameters,
        words="{:.2f} billion parameters", least=5.35, most=5.45, theirs="7 to 5.4 billion parameters (Compresso)",
        source=f"{_S3}, section 3.2.2",
    ),
    Evidence(
        id="Q-S4-09", technique="low-rank:rank=3712,targets=up_proj+down_proj", ours=_parameters,
        words="{:.1f} billion parameters", least=12.3, most=13.2, theirs="16 to 12.3 billion parameters (LoRD)",
        source=f"{_S4}, section 5.2.3", model="starcoder",
    ),
    Evidence(
        id="Q-S0-02", technique="", ours=_teacher, words="{:.2f}x as fast as bert-base-uncased", least=1, most=2,
        theirs="71 % faster", source=_S0, model="distilbert-base-uncased", options={"prompt": 128},
    ),
    Evidence(
        id="Q-S4-11", technique="fusion", ours=_finding("launches_per_layer"), words="{:g} launches per layer",
        least=7, most=7, theirs="7 kernels per block", source=f"{_S4}, section 6.1.1",
    ),
    Evidence(
        id="Q-S4-17", technique="launches", ours=_decoding,
        words="{:.2f}x the decode rate with a CUDA graph", most=0.999,
        theirs="launches outweigh light operators", source=f"{_S4}, section 6.1.1", model="llama-3.2-1b",
        hardware="h100-sxm",
    ),
    Evidence(
        id="Q-S2-02", technique="chunked-prefill:tokens=256", ours=_with_decoding,
        words="a chunk and 32 decode steps {:.2f}x as fast in one pass", least=1, most=2,
        theirs="up to 1.33x the throughput", source=f"{_S2}, section 2.4", model="llama-2-7b",
        options={"batch": 32, "prompt": 1024},
    ),
)  # fmt: skip
