"""Serving engines: their kernel library, and the time that they add to kernels.

Seven engines were measured side by side on one A100 80 GB with LLaMA-2-7B, one sequence, 1024 prompt tokens and 128
generated ones (arXiv:2404.14294, table 6; without speculative decoding). Kernel libraries were measured elsewhere
(docs/accuracy.md). Engines with `fitted` have one number fitted to their row of the table, which is then no test of
them; for others the row is predicted. Engines without a row have nothing fitted, and are tested against published
measurements of whole servers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from ..devices.hardware import Hardware
from ..errors import InputError, suggest
from ..forms import Num
from ..records import frozen

TABLE: Final = "arXiv:2404.14294, table 6"
SERVERS: Final = "tables of whole servers (`llmviewer docs serving`)"
LOCAL: Final = "docs/serving.md#local-engines"


@frozen(kw_only=True)
class Host:
    """Host time of a step; none if a CUDA graph replays the kernels of successive steps.

    launch_s  host time per launch [s]
    step_s    time between two steps [s]
    """

    launch_s: float = 0.0
    step_s: float = 0.0

    def time_s(self, kernels_s: Num, launches: Num) -> Num:
        """A step: its kernels, or its launches where those take longer, and what is between it and the next. [s]"""
        return np.maximum(kernels_s, launches * self.launch_s) + self.step_s


IDLE: Final = Host()


class Default(NamedTuple):
    """A default scheduler of an engine.

    policy     value of --policy
    gib        least memory of GPUs that it applies to [GiB]
    but        prefixes of names of devices that it does not apply to
    max_batch  largest batch, if limited
    lockstep_policy  policy where ranks of data parallelism wait for each other; "" for the same
    """

    policy: str
    gib: float = 0
    but: str = ""
    max_batch: int | None = None
    lockstep_policy: str = ""

    def meant_on(self, hardware: Hardware) -> bool:
        has_memory = hardware.kind == "gpu" and hardware.capacity >= self.gib * 2**30
        return not self.gib or (has_memory and not (self.but and hardware.name.startswith(self.but)))


class Row(NamedTuple):
    """The row of an engine in the table.

    tokens_per_s  measured value [1/s]
    fitted        name of the number fitted to it; "" if the row is predicted
    """

    tokens_per_s: float
    fitted: str = ""


@frozen(kw_only=True)
class Engine:
    """A serving engine.

    library   measured kernel library
    attention "flash" or "eager" (scores in memory)
    kernels   time of its kernels over that of the library's
    defaults  default schedulers; the last one that applies to a device is used
    block     tokens per block of its cache
    row       row of the table; None if it has none
    has_whole_passes  whether its whole passes were measured, but no single kernel (whole_passes.py)
    """

    name: str
    title: str
    library: str
    attention: str = "flash"
    kernels: float = 1.0
    host: Host = IDLE
    defaults: tuple[Default, ...]
    block: int = 16
    row: Row | None = None
    has_whole_passes: bool = False
    note: str

    def default_on(self, hardware: Hardware) -> Default:
        """The default scheduler on a device, by its memory and name."""
        *_, meant = (default for default in self.defaults if default.meant_on(hardware))
        return meant

    @property
    def description(self) -> str:
        """Derivation of its times, as text."""
        if self.has_whole_passes:
            return f"{self.title}: factors fitted to passes measured by its users ({LOCAL}). {self.note}"
        if self.row is None:
            how = f"nothing was fitted; tested against {SERVERS}, as it has no row in {TABLE}"
        else:
            how = f"its {self.row.fitted} was fitted to" if self.row.fitted else "nothing was fitted to"
            how += f" its row of {TABLE}"
        return f"{self.title} on kernels of {self.library}; {how}. {self.note}"


ENGINES: Final = {
    engine.name: engine
    for engine in (
        Engine(
            name="huggingface", title="Hugging Face transformers", library="pytorch", attention="eager",
            host=Host(launch_s=49.1e-6), defaults=(Default("static"),), row=Row(38.963, "time for a launch"),
            note="PyTorch launches kernels one by one, several for an operator.",
        ),
        Engine(
            name="deepspeed", title="DeepSpeed", library="cublas", defaults=(Default("chunked:512"),), row=Row(80.947),
            note="cuBLAS stands in for its kernels, which were not measured. Dynamic SplitFuse: chunked prefill.",
        ),
        Engine(  # its schedulers: vllm/engine/arg_utils.py, get_batch_defaults()
            name="vllm", title="vLLM", library="vllm", row=Row(90.052),
            defaults=(
                Default("chunked:2048", max_batch=256), Default("chunked:8192", gib=70, but="a100", max_batch=1024),
            ),
            note="vLLM V1 defaults: chunked prefill, decodes first; max_num_seqs 256, max_num_batched_tokens 2048; on "
            "GPUs of 70 GiB or more except A100 1024 and 8192.",
        ),
        Engine(  # its schedulers: sglang/srt/server_args.py, _handle_gpu_memory_settings()
            name="sglang", title="SGLang", library="sglang", block=1, row=None,
            defaults=tuple(  # max_batch: at least so many, srt/model_executor/model_runner.py
                Default(f"prefill-chunks:{tokens}", gib=gib, max_batch=2048)
                for tokens, gib in ((2048, 0), (4096, 35), (8192, 60), (16384, 160))
            ),
            note="Prefill first, in chunks of 2048 to 16384 tokens by GPU memory. CUDA graphs and an overlapped "
            "scheduler leave no gaps between steps.",
        ),
        Engine(
            name="openppl", title="OpenPPL", library="cublas", defaults=(Default("fcfs"),), row=Row(81.169),
            note="cuBLAS stands in for its kernels, which were not measured.",
        ),
        Engine(
            name="flashdecoding++", title="FlashDecoding++", library="vllm", kernels=0.803,
            defaults=(Default("prefill-first"),), row=Row(106.636, "kernels' factor"),
            note="Flat GEMM and asynchronous softmax (arXiv:2311.01282).",
        ),
        Engine(
            name="lightllm", title="LightLLM", library="sglang", host=Host(step_s=1.96e-3), block=1,
            defaults=(Default("chunked:512"),), row=Row(73.599, "time between steps"),
            note="Triton kernels; SGLang's are the most similar measured ones. Token-level KV cache.",
        ),
        # Its scheduler: tensorrt_llm/llmapi/llm_args.py, max_num_tokens and enable_chunked_prefill. Prompts are held
        # back as its guides and InferenceX set attention_dp_config for DeepSeek-R1; it is off unless set.
        Engine(
            name="tensorrt-llm", title="TensorRT-LLM", library="trtllm",
            defaults=(Default("fcfs:8192", max_batch=2048, lockstep_policy="fcfs:8192,hold=60"),),
            row=Row(92.512),
            note="In-flight batching: whole prompts, up to 8192 tokens a step, in one batch with decodes.",
        ),
        Engine(  # its scheduler: defaults of --ubatch-size and --parallel (pull 16736)
            name="llama.cpp", title="llama.cpp", library="llama.cpp", has_whole_passes=True, block=1,
            defaults=(Default("chunked:512", max_batch=4),),
            note="llama-server defaults: 4 slots, decode with up to 512 prompt tokens a step.",
        ),
        Engine(  # its scheduler: defaults of --prefill-step-size and --decode-concurrency of mlx_lm.server
            name="mlx", title="MLX", library="mlx", has_whole_passes=True, block=1,
            defaults=(Default("prefill-chunks:2048", max_batch=32),),
            note="mlx_lm prefills prompts in chunks of 2048 tokens.",
        ),
    )
}  # fmt: skip


def find_engine(name: str, library: str = "") -> Engine:
    """Returns an engine.

    Raises InputError, with the nearest names, if it is unknown, or if another library is requested.
    """
    if name not in ENGINES:
        raise InputError(f"no engine {name!r}; {suggest(name, ENGINES)}")
    engine = ENGINES[name]
    if library:
        raise InputError(f"library must be left out beside engine {name}, which runs kernels of {engine.library}")
    return engine
