"""What was published of techniques, beside what is worked out here: the table of docs/techniques.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from llmviewer.analysis import Analysis, analyze
from llmviewer.hardware_files import load_hardware
from llmviewer.setting import Setting

_SURVEY: Final = "arXiv:2404.14294"
_TABLE_5: Final = f"{_SURVEY}, table 5; the overhead is what its tokens a pass leave to explain"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A published number and ours.

    technique  as it is written after --with; several with spaces between them
    ours       of the analysis, as a text
    theirs     as published, or as read off
    """

    technique: str
    ours: Callable[[Analysis], str]
    theirs: str
    source: str
    model: str = "llama-7b"
    hardware: str = "a100-sxm-80gb"
    options: Mapping[str, Any] = field(default_factory=dict)

    def found(self) -> str:
        """Ours."""
        return self.ours(analyze(self.model, self.hardware, techniques=self.technique.split(), **self.options))

    @property
    def setting(self) -> str:
        """What was asked."""
        options = "".join(f", {name} {value}" for name, value in self.options.items())
        return f"{self.model} on {self.hardware}{options}"


def _decoding(found: Analysis) -> float:
    """How many times as fast tokens after the first are."""
    assert found.effect
    with_it, without = found.effect.result.tpot_s, found.effect.without.tpot_s
    return without / with_it if with_it and without else 1.0


def _faster(found: Analysis) -> str:
    return f"tokens {_decoding(found):.2f}x as fast"


def _overhead(measured: float) -> Callable[[Analysis], str]:
    """The bound, and what of a pass has to be beyond it where `measured` times as fast was seen."""
    return lambda found: f"{_faster(found)}; {_decoding(found) / measured - 1:.0%} beyond the bound"


def _parameters(found: Analysis) -> str:
    asked = found.inputs
    network = Setting.of(found.model, load_hardware(found.hardware.name), techniques=asked.techniques).graph
    return f"{network.parameters / 1e9:.1f} billion parameters"


def _cache(found: Analysis) -> str:
    return f"cache {found.memory.kv_cache_bytes / 1e9:.2f} GB, {'fits' if found.memory.fits else 'does not fit'}"


def _finding(key: str, unit: str) -> Callable[[Analysis], str]:
    def ours(found: Analysis) -> str:
        assert found.effect
        return f"{found.effect.findings[key]:g} {unit}"

    return ours


EVIDENCE: Final = (
    Evidence(
        technique="speculative:draft=llama-68m,gamma=4,tau=2.02",
        ours=_overhead(1.77),
        theirs="2.02 tokens a pass, 1.77x",
        source=_TABLE_5,
    ),
    Evidence(technique="lookahead:tau=2.14", ours=_overhead(1.30), theirs="2.14 tokens a pass, 1.30x", source=_TABLE_5),
    Evidence(
        technique="self-speculative:layers=0.3,gamma=1,tau=1.74",
        ours=_overhead(1.23),
        theirs="1.74 tokens a pass, 1.23x",
        source=_TABLE_5,
    ),
    Evidence(
        technique="retrieval:tau=2.31",
        ours=_overhead(2.27),
        theirs="2.31 tokens a pass, 2.27x",
        source=_TABLE_5,
        model="llama-30b",
    ),
    Evidence(
        technique="medusa:tau=2.52",
        ours=_overhead(2.04),
        theirs="2.52 tokens a pass, 2.04x",
        source=_TABLE_5,
        model="llama-13b",
    ),
    Evidence(
        technique="eagle:tau=3.47",
        ours=_overhead(2.77),
        theirs="3.47 tokens a pass, 2.77x",
        source=_TABLE_5,
        model="llama-13b",
    ),
    Evidence(
        technique="contextual-sparsity:active=0.2,heads=0.5",
        ours=_faster,
        theirs="over 2x for OPT-175B on several devices",
        source="arXiv:2310.17157",
        model="opt-30b",
    ),
    Evidence(
        technique="early-exit:exit=0.25,stay=0.1",
        ours=_faster,
        theirs="up to 2x",
        source="arXiv:2402.16363, section 4.1.1",
    ),
    Evidence(
        technique="skeleton",
        ours=_faster,
        theirs="up to 2.39x in all",
        source=f"{_SURVEY}, section 4.2",
        options={"gen": 512},
    ),
    Evidence(
        technique="quantized:scheme=awq",
        ours=_faster,
        theirs="2.40x with TensorRT-LLM, 2.11x with LMDeploy",
        source=f"{_SURVEY}, table 4",
        model="llama-2-7b",
        options={"prompt": 128},
    ),
    Evidence(
        technique="streaming chunked-prefill",
        ours=_cache,
        theirs="4 million tokens",
        source=f"{_SURVEY}, section 5.3",
        model="llama-2-7b",
        options={"prompt": 4_000_000},
    ),
    Evidence(
        technique="fusion",
        ours=_finding("launches_per_layer", "launches of a layer"),
        theirs="7 kernels of a block",
        source=f"{_SURVEY}, section 6.1.1",
    ),
    Evidence(
        technique="structured-pruning:heads=0.78,ffn=0.79",
        ours=_parameters,
        theirs="7 to 5.4 billion parameters",
        source="arXiv:2402.16363, section 3.2.2",
    ),
)
