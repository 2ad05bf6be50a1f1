"""Engines: whose kernels they run, and what they add to them, so that a step takes as long as one of theirs.

Seven engines were measured side by side on one A100 80 GB, LLaMA-2-7B, one sequence, 1024 tokens read and 128 written
(arXiv:2404.14294, table 6; speculative decoding off). Kernel libraries were measured elsewhere (docs/accuracy.md), so
where nothing is `fitted`, those numbers are predicted; where something is, one number of the engine was fitted to its
row of the table, and the row says nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ..errors import InputError, suggest
from ..forms import Num
from ..hardware import Hardware

TABLE: Final = "arXiv:2404.14294, table 6"
_LARGE: Final = 70 * 2**30  # memory from which vLLM's servers take more tokens together (vllm/engine/arg_utils.py) [B]


@dataclass(frozen=True, kw_only=True)
class Host:
    """What a step waits for beside its kernels; nothing where a CUDA graph replays them, one step after another.

    launch_s  the host's time for a launch of the model's graph [s]
    step_s    between two steps [s]
    """

    launch_s: float = 0.0
    step_s: float = 0.0

    def time_s(self, kernels_s: Num, launches: Num) -> Num:
        """A step: its kernels, or its launches where those take longer, and what is between it and the next. [s]"""
        return np.maximum(kernels_s, launches * self.launch_s) + self.step_s


IDLE: Final = Host()


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What a step takes: the kernels of a library, and what the host adds.

    library   whose kernels were measured
    attention "flash", or "eager" where scores go through memory
    kernels   time of its kernels over that of the library's
    policy    its scheduler, as --policy has it; `large` on large GPUs, where that is another
    block     tokens of a block of its cache
    tokens_per_s  as measured in the table [1/s]
    fitted    the name of the number that is fitted to that; "" where it is predicted
    """

    name: str
    title: str
    library: str
    attention: str = "flash"
    kernels: float = 1.0
    host: Host = IDLE
    policy: str
    large: str = ""
    block: int = 16
    tokens_per_s: float
    fitted: str = ""
    note: str

    def policy_on(self, hardware: Hardware) -> str:
        """Its scheduler on a device, as it chooses by memory and name."""
        is_large = hardware.kind == "gpu" and hardware.capacity >= _LARGE and not hardware.name.startswith("a100")
        return self.large if self.large and is_large else self.policy

    @property
    def said(self) -> str:
        """How its times come about, in words."""
        how = f"its {self.fitted} was fitted to" if self.fitted else "nothing was fitted to"
        return f"{self.title} on kernels of {self.library}; {how} its row of {TABLE}. {self.note}"


ENGINES: Final = {
    engine.name: engine
    for engine in (
        Engine(
            name="huggingface", title="Hugging Face transformers", library="pytorch", attention="eager",
            host=Host(launch_s=49.1e-6), policy="static", tokens_per_s=38.963, fitted="time for a launch",
            note="PyTorch launches kernels one by one; a launch of the graph is several of its.",
        ),
        Engine(
            name="deepspeed", title="DeepSpeed", library="cublas", policy="chunked:512", tokens_per_s=80.947,
            note="Its own kernels were not measured; cuBLAS stands in. Split and fuse: parts of prompts.",
        ),
        Engine(
            name="vllm", title="vLLM", library="vllm", policy="chunked:2048", large="chunked:8192", tokens_per_s=90.052,
            note="Paged cache; those who decode come first, then chunks of prompts, 2048 tokens together: the default "
            "of its servers since V1; on GPUs of 70 GiB or more other than the A100 8192.",
        ),
        Engine(
            name="openppl", title="OpenPPL", library="cublas", policy="fcfs", tokens_per_s=81.169,
            note="Its own kernels were not measured; cuBLAS stands in.",
        ),
        Engine(
            name="flashdecoding++", title="FlashDecoding++", library="vllm", kernels=0.803, policy="prefill-first",
            tokens_per_s=106.636, fitted="kernels' factor",
            note="Flat matrix products and a softmax that waits for nobody (arXiv:2311.01282).",
        ),
        Engine(
            name="lightllm", title="LightLLM", library="sglang", host=Host(step_s=1.96e-3), policy="chunked:512",
            block=1, tokens_per_s=73.599, fitted="time between steps",
            note="Triton kernels, of which SGLang's are the nearest measured; a cache by token.",
        ),
        Engine(
            name="tensorrt-llm", title="TensorRT-LLM", library="trtllm", policy="fcfs", tokens_per_s=92.512,
            note="Paged cache, in-flight batching: prompts are read beside those that decode.",
        ),
    )
}  # fmt: skip


def find_engine(name: str, library: str = "") -> Engine:
    """Raises InputError, with the nearest names, where there is none such, and where another library is asked for."""
    if name not in ENGINES:
        raise InputError(f"no engine {name!r}; {suggest(name, ENGINES)}")
    engine = ENGINES[name]
    if library:
        raise InputError(f"library must be left out beside engine {name}, which runs kernels of {engine.library}")
    return engine
