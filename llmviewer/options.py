"""Options of a setting: each declared once, with its type, limits, default and description.

Public functions take the options that they support as `**options: Unpack[...]`, so that type checkers hold each keyword
to its declaration; the command line, the page and docs/options.md are made from the same declarations. Subsets are base
classes: a function that serves requests does not support offloading, say. Imports nothing heavy.
"""
# No `from __future__ import annotations`: declarations are read at run time, and heavy types are quoted.

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter as Argument
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict, TypeVar, cast

from .parameters import (
    MAX_DEGREE,
    MAX_SEQUENCES,
    Accounting,
    Algorithm,
    AttentionMode,
    KvLink,
    KvTransfer,
    Mla,
    Parameter,
    declared,
    kind_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from .devices.hardware import Hardware
    from .expectation.profile import Profile
    from .parallel.layout import Layout
    from .techniques import Technique
    from .transforms.host import HostPlacement
    from .transforms.offload import Offload

_C = TypeVar("_C", bound=Callable[..., Any])
_O = TypeVar("_O")


def _degree(about: str, label: str, *, page_most: int = 1024) -> Parameter:
    return Parameter(
        about=about, default=1, least=1, most=MAX_DEGREE, label=label, term="parallelism", page_most=page_most
    )  # fmt: skip


_BATCH: Final = Parameter(
    about="Sequences per batch.", default=1, least=1, label="Batch", term="batch", page_most=65_536
)
_GEN: Final = Parameter(
    about="Generated tokens per sequence.",
    more="If not given, 128, or one inference of a robot model.",
    unit="tokens",
    least=1,
    label="Generated",
    term="generated tokens",
    page_most=65_536,
)
_KV_LEN: Final = Parameter(
    about="Context of the decode step shown, its own token included.",
    more="If not given, that of the first step.",
    unit="tokens",
    least=1,
    link="context",
    label="Context",
    term="context",
    page_most=8_388_608,
)
_TTFT: Final = Parameter(
    about="Target: longest time to first token.",
    unit="s",
    metavar="TIME",
)
_TPOT: Final = Parameter(
    about="Target: longest time per output token.",
    unit="s",
    metavar="TIME",
)
_QUANTS: Final = Parameter(
    about="A precision, as in analyze.",
    more="May be repeated.",
    default=(),
    flag="--quant",
    metavar="SCHEME",
)
_MAX_DEVICES: Final = Parameter(about="Maximum devices.", default=1, least=1, metavar="N")


class BatchOptions(TypedDict, total=False):
    """The sequences of a batch."""

    batch: Annotated[int, _BATCH]


class MaxBatchOptions(TypedDict, total=False):
    """The sequences of a batch, or the most that fit."""

    batch: Annotated["int | str", replace(_BATCH, more="max: the most that fit in memory.", metavar="N|max")]


class BatchesOptions(TypedDict, total=False):
    """Several batches, or the largest that fits."""

    batch: Annotated[
        "int | str | Sequence[int]",
        replace(_BATCH, more="Several: 1,8,64 or 1..64*2; max: the most that fit in memory.", metavar="NUMBERS|max"),
    ]


class PromptOptions(TypedDict, total=False):
    """The prompt of each sequence."""

    prompt: Annotated[
        int,
        Parameter(
            about="Prompt tokens per sequence.",
            default=1024,
            unit="tokens",
            least=1,
            label="Prompt",
            term="prompt",
            page_most=4_194_304,
        ),
    ]


class LengthOptions(PromptOptions, total=False):
    """The tokens of each sequence."""

    gen: Annotated["int | None", _GEN]


class RequestLengthOptions(PromptOptions, total=False):
    """The tokens of each request over time."""

    gen: Annotated["int | None", replace(_GEN, more="", default=256)]


class ContextOptions(TypedDict, total=False):
    """Images of a prompt, and the decode step shown."""

    kv_len: Annotated["int | None", _KV_LEN]
    images: Annotated[
        "int | None",
        Parameter(
            about="Images per prompt, or audio clips of 30 s.",
            default=0,
            least=0,
            label="Images",
            term="image tokens",
            page_most=1024,
        ),
    ]


class GenerationOptions(BatchOptions, LengthOptions, total=False):
    """A batch of equal generations."""


class RequestOptions(GenerationOptions, ContextOptions, total=False):
    """A batch of equal requests."""


class TargetOptions(TypedDict, total=False):
    """Latency targets."""

    ttft: Annotated["float | None", _TTFT]
    tpot: Annotated["float | None", _TPOT]


class PercentileTargetOptions(TypedDict, total=False):
    """Latency targets of a percentile of the requests."""

    ttft: Annotated[
        "float | str | None",
        replace(_TTFT, more="0.5 or 500ms for 90 % of the requests, p99=0.5, or mean=0.5.", metavar="TARGET"),
    ]
    tpot: Annotated["float | str | None", replace(_TPOT, more="Likewise.", metavar="TARGET")]


class PriceOptions(TypedDict, total=False):
    """Prices of devices."""

    years: Annotated[
        "float | None",
        Parameter(
            about="Years of continuous use over which the purchase price is spread.",
            more="If not given, only cloud prices count.",
            unit="years",
            flag="--depreciation",
            metavar="YEARS",
        ),
    ]


class HardwareOptions(TypedDict, total=False):
    """Changes of the device."""

    hardware_set: Annotated[
        Sequence[str],
        Parameter(
            about="What-if: changes a number of the device, such as memory.bandwidth=2x.",
            more="Or matrix.fp16='155 TOP/s', memory.capacity='48 GB'; for one of several devices: "
            "l40s:price.cloud='1 USD/h'. May be repeated.",
            default=(),
            metavar="KEY=VALUE",
            link="set",
        ),
    ]


class LibraryOptions(TypedDict, total=False):
    """Measured kernels of expected times."""

    library: Annotated[
        str,
        Parameter(
            about="Kernel library of expected times: vllm, sglang, trtllm, cublas, ... (`llmviewer profiles`).",
            more="If not given, the one with most measurements on the device, which may not be the fastest.",
            default="",
            metavar="NAME",
            label="Kernel library",
            term="kernel library",
        ),
    ]
    profiles: Annotated[
        "Sequence[str | Path | Profile]",
        Parameter(
            about="A profile that `llmviewer calibrate` wrote, used before those that ship.",
            more="May be repeated.",
            default=(),
            flag="--profile",
            metavar="FILE",
        ),
    ]


class EngineOptions(TypedDict, total=False):
    """The serving engine."""

    engine: Annotated[
        str,
        Parameter(
            about="Serving engine: its kernels, and its host time per step.",
            more="vllm, sglang, tensorrt-llm, llama.cpp, mlx; atom, huggingface, deepspeed, openppl, flashdecoding++ "
            "or lightllm, of which a number was fitted to one run, or others' kernels stand in. Replaces --library. If "
            "not given, launches have no gaps.",
            default="",
            metavar="NAME",
            label="Engine",
            term="engine",
        ),
    ]
    engine_version: Annotated[
        str,
        Parameter(
            about="Version of the engine, such as 0.11, by which it reserves memory.",
            more="If not given, the newest that is known.",
            default="",
            metavar="VERSION",
        ),
    ]
    experts_kernel: Annotated[
        str,
        Parameter(
            about="Measured kernel of experts that the engine is told to use: part of its name, such as marlin.",
            more="vLLM's --moe-backend, SGLang's --moe-runner-backend. If not given, the best of the newest.",
            default="",
            metavar="NAME",
        ),
    ]
    memory_fraction: Annotated[
        "float | None",
        Parameter(
            about="Share of device memory that the engine uses.",
            more="vLLM's --gpu-memory-utilization, SGLang's --mem-fraction-static, TensorRT-LLM's "
            "--free_gpu_memory_fraction. If not given, the engine's.",
            least=0.01,
            most=1,
            metavar="SHARE",
            label="Memory fraction",
            term="memory fraction",
        ),
    ]
    max_num_seqs: Annotated[
        "int | None",
        Parameter(
            about="Maximum running sequences of the engine, per dp rank.",
            more="SGLang's --max-running-requests, TensorRT-LLM's --max_batch_size, llama.cpp's --parallel. If not "
            "given, the engine's on the device.",
            least=1,
            most=MAX_SEQUENCES,
            metavar="N",
            label="Running sequences",
            term="batch limit",
            page_most=65_536,
        ),
    ]
    max_num_batched_tokens: Annotated[
        "int | None",
        Parameter(
            about="Maximum tokens of a step of the engine.",
            more="SGLang's --chunked-prefill-size, TensorRT-LLM's --max_num_tokens, llama.cpp's --ubatch-size. If not "
            "given, the engine's on the device.",
            least=1,
            most=MAX_SEQUENCES,
            metavar="N",
            label="Tokens of a step",
            term="chunked prefill",
            page_most=4_194_304,
        ),
    ]
    max_model_len: Annotated[
        "int | None",
        Parameter(
            about="Maximum tokens of a request of the engine.",
            more="SGLang's --context-length, TensorRT-LLM's --max_seq_len, llama.cpp's --ctx-size of a slot. If not "
            "given, the model's.",
            unit="tokens",
            least=1,
            most=MAX_SEQUENCES,
            metavar="TOKENS",
            label="Longest request",
            term="context",
            page_most=8_388_608,
        ),
    ]


class BoundOptions(TypedDict, total=False):
    """Restriction to lower bounds."""

    bound: Annotated[
        bool,
        Parameter(about="Only lower bounds, no expected times.", default=False),
    ]


class PrecisionOptions(TypedDict, total=False):
    """Precision of weights, activations and KV cache."""

    quant: Annotated[
        "str | None",
        Parameter(
            about="Bits or formats of weights, activations and KV cache: W4A16g128, W8A8KV8, fp8, Wnf4A16.",
            more="Per part of the model: W4A16g128,down_proj=W8A16,layers.0-3=W16A16. fp8, int8, mxfp8 and nvfp4 set "
            "weights and activations; int4, nf4, mxfp6 and mxfp4 weights only; fp8KV8 also the KV cache. Or a type of "
            "llama.cpp files: Q4_K_M, Q8_0,A8g32. After a group size: bits of scales, bits of zero points, scales per "
            "32-bit scale: W4A16g64s8z0d256. If not given, `published`: as the model was; parts may follow it.",
            metavar="SCHEME",
            label="Precision",
            term="precision",
        ),
    ]


class SkewOptions(TypedDict, total=False):
    """Popularity of experts."""

    expert_skew: Annotated[
        float,
        Parameter(
            about="Zipf exponent of expert popularity, which is rank^-S; 0 is uniform.",
            default=0,
            least=0,
            metavar="S",
            link="skew",
            label="Expert skew",
            term="expert",
            page_most=10,
        ),
    ]


class TechniqueOptions(TypedDict, total=False):
    """Techniques to apply."""

    techniques: Annotated[
        "Sequence[str | Mapping[str, object] | Technique]",
        Parameter(
            about="Technique to apply, such as sparsity or speculative:draft=llama-68m,gamma=4,alpha=0.7.",
            more="See `llmviewer techniques`. May be repeated.",
            default=(),
            flag="--with",
            metavar="TECHNIQUE",
            label="Techniques",
            term="technique",
        ),
    ]


class RedundancyOptions(TypedDict, total=False):
    """Copies of experts."""

    redundant_experts: Annotated[
        int,
        Parameter(
            about="Redundant copies of popular experts per layer, which balance ranks (EPLB).",
            more="SGLang's --ep-num-redundant-experts, vLLM's num_redundant_experts.",
            default=0,
            least=0,
            most=MAX_DEGREE,
            metavar="N",
        ),
    ]


class DegreeOptions(TypedDict, total=False):
    """Degrees of parallelism."""

    tp: Annotated[int, _degree("Tensor parallelism: shards weights, heads and experts.", "Tensor")]
    pp: Annotated[int, _degree("Pipeline parallelism: distributes layers.", "Pipeline", page_most=16)]
    ep: Annotated[int, _degree("Expert parallelism: distributes experts over tp x dp devices.", "Expert")]
    dp: Annotated[int, _degree("Data parallelism: distributes sequences.", "Data")]
    cp: Annotated[int, _degree("Context parallelism: distributes tokens of prompt and KV cache.", "Context")]


class LayoutOptions(DegreeOptions, RedundancyOptions, total=False):
    """Degrees of parallelism, and algorithms of collectives."""

    micro_batches: Annotated[
        int,
        Parameter(
            about="Micro-batches of the pipeline; one per stage if 0.",
            default=0,
            least=0,
            most=MAX_DEGREE,
        ),
    ]
    collective: Annotated[
        str,
        Parameter(
            about="Algorithm of collectives; auto: a bound for all of them.",
            default=Algorithm.AUTO.value,
            choices=tuple(Algorithm),
        ),
    ]
    hierarchical_all_to_all: Annotated[
        bool,
        Parameter(about="Two-level all-to-all: each token is sent once per node, then within the node.", default=False),
    ]
    overlap: Annotated[bool, Parameter(about="Overlap collectives with the launch before them.", default=False)]
    two_batch_overlap: Annotated[
        bool,
        Parameter(
            about="Two half-batches: collectives of one overlap with computation of the other.",
            more="SGLang's two-batch, vLLM's dual-batch overlap, DeepSeek's dual micro-batches.",
            default=False,
        ),
    ]
    batch_sharded_attention: Annotated[
        bool,
        Parameter(
            about="With fewer key heads than tp, divide sequences instead of replicating keys.",
            more="Ranks that share a key head exchange queries and results by all-to-all (arXiv:2211.05102).",
            default=False,
        ),
    ]
    layout: Annotated[
        "str | Layout",
        Parameter(about="All degrees of parallelism in one: 'tp=4 ep=4'.", default="", metavar="DEGREES"),
    ]


class AttentionOptions(TypedDict, total=False):
    """Attention kernels."""

    attention: Annotated[
        "str | None",
        Parameter(
            about="eager: three launches with the scores in memory; flash: one launch.",
            more="If not given, flash, or eager in survey accounting.",
            choices=tuple(AttentionMode),
            label="Attention",
            term="attention",
        ),
    ]
    mla: Annotated[
        str,
        Parameter(
            about="Latent attention (DeepSeek): expanded cache, or projected queries.",
            more="naive: expand the cache to keys and values; absorbed: project the queries to the cache; auto: naive "
            "in the prefill, absorbed in decode.",
            default=Mla.AUTO.value,
            choices=tuple(Mla),
            label="Latent attention",
            term="latent attention",
        ),
    ]


class AccountingOptions(TypedDict, total=False):
    """Accounting of work."""

    accounting: Annotated[
        str,
        Parameter(
            about='Counts of OPs and bytes: those of real kernels, or of the paper "LLM Inference Unveiled".',
            more="faithful: the work of kernels; survey: the conventions of the paper (arXiv:2402.16363).",
            default=Accounting.FAITHFUL.value,
            choices=tuple(Accounting),
            label="Accounting",
            term="accounting",
        ),
    ]


class HostOptions(TypedDict, total=False):
    """The CPU, or second GPU, that computes beside a device."""

    host: Annotated[
        "str | Hardware",
        Parameter(
            about="CPU, or second GPU, that computes beside its own memory what --on-host names.",
            more="A name that `llmviewer hardware` lists or a YAML file.",
            default="",
            metavar="DEVICE",
        ),
    ]
    host_set: Annotated[
        Sequence[str],
        Parameter(
            about="What-if: changes a number of the host, such as memory.bandwidth=96GB/s or memory.capacity=64GiB.",
            more="May be repeated.",
            default=(),
            metavar="KEY=VALUE",
        ),
    ]


class PassOptions(AccountingOptions, HostOptions, total=False):
    """Work of a pass besides that of its layers, offloading, and accounting."""

    mtp: Annotated[
        bool,
        Parameter(
            about="Also run the multi-token prediction layers of a model that has them.",
            default=False,
            label="Token prediction",
            term="token prediction",
        ),
    ]
    offload: Annotated[
        "str | Offload",
        Parameter(
            about="Fractions of weights and KV cache in host memory, fetched on use.",
            more="Or on storage: weights=0.5,kv=0.2@storage.",
            default="",
            metavar="PARTS",
            label="Offload",
            term="offload",
        ),
    ]
    offload_sync: Annotated[
        bool, Parameter(about="Do not overlap fetches of offloaded data with computation.", default=False)
    ]
    on_host: Annotated[
        "str | HostPlacement",
        Parameter(
            about="What the host computes: experts, layers or attention.",
            more="Of all layers or of the first ones: experts=36 (llama.cpp's --n-cpu-moe 36), layers=20, attention.",
            default="",
            metavar="PARTS",
        ),
    ]


class TransferOptions(TypedDict, total=False):
    """Transfers of KV caches between separate prefill and decode workers."""

    kv_transfer: Annotated[
        "str | None",
        Parameter(
            about="KV-cache transfer to decode workers: after the prefill, or layer by layer during it.",
            more="If not given, after.",
            choices=tuple(KvTransfer),
        ),
    ]
    kv_link: Annotated[
        "str | None",
        Parameter(
            about="Links of the KV-cache transfer: between nodes (else host links), or within a scale-up domain.",
            more="If not given, scale-out.",
            choices=tuple(KvLink),
        ),
    ]


class SideOptions(
    PrecisionOptions, AttentionOptions, SkewOptions, HardwareOptions, LibraryOptions, EngineOptions, total=False
):
    """Options that apply with any layout and any techniques."""


class CommonOptions(SideOptions, LayoutOptions, TechniqueOptions, total=False):
    """Options of every setting of a model."""


class ServedOptions(CommonOptions, BoundOptions, total=False):
    """Options of a setting that serves requests over time."""


class SettingOptions(ServedOptions, PassOptions, total=False):
    """All options of a setting."""


class DisaggregatedOptions(SideOptions, BoundOptions, PassOptions, total=False):
    """Options that prefill and decode devices share."""


class SplitOptions(SideOptions, BoundOptions, HostOptions, total=False):
    """Options of a model that is split between a device and its host."""


class SearchOptions(
    PrecisionOptions, AttentionOptions, SkewOptions, HardwareOptions, LibraryOptions, BoundOptions, total=False
):
    """Options of a search for shapes of a model."""


class MachinePrecisionOptions(TypedDict, total=False):
    """Precisions of models that a device runs."""

    quants: Annotated[
        Sequence[str],
        replace(
            _QUANTS,
            about="A precision to choose from, the widest first.",
            more="May be repeated. If not given, Q8_0, Q6_K, Q5_K_M and Q4_K_M for llama.cpp, 8, 6 and 4 bits for MLX, "
            "else that of the checkpoint, fp8 and W4A16g128.",
        ),
    ]


class MachineOptions(MachinePrecisionOptions, HardwareOptions, EngineOptions, total=False):
    """Options of a search for the models that a device runs."""


class FleetOptions(TechniqueOptions, HardwareOptions, LibraryOptions, EngineOptions, BoundOptions, total=False):
    """Options that all settings share where devices, precisions and layouts are compared."""


class ExpertOptions(
    PrecisionOptions, SkewOptions, RedundancyOptions, HardwareOptions, LibraryOptions, BoundOptions, total=False
):
    """Options of experts on separate devices."""


class ExpertStepOptions(TypedDict, total=False):
    """A decode step with experts on separate devices."""

    kv_len: Annotated[
        int, replace(_KV_LEN, about="Context of each sequence, the token of the step included.", more="", default=4096)
    ]
    micro_batches: Annotated[
        int,
        Parameter(about="Micro-batches of a batch; the fastest number from 1 to 8 if 0.", default=0, least=0),
    ]
    link: Annotated[
        str,
        Parameter(
            about="Links between both sides: between nodes, or within one scale-up domain.",
            default=KvLink.SCALE_OUT.value,
            choices=tuple(KvLink),
        ),
    ]


class ExpertBatchOptions(TypedDict, total=False):
    """Batches of decode steps with experts on separate devices."""

    batch: Annotated[
        "int | Sequence[int]",
        replace(_BATCH, about="Sequences on all attention devices.", more="Several: 64..4096*4.", metavar="NUMBERS"),
    ]


class KernelOptions(PrecisionOptions, HardwareOptions, LibraryOptions, total=False):
    """Options of a single kernel."""


class CountedOptions(AttentionOptions, AccountingOptions, total=False):
    """Options that figures of several precisions share."""


class FigureOptions(PrecisionOptions, CountedOptions, HardwareOptions, total=False):
    """Options of the figures of "LLM Inference Unveiled"."""


class AnalysisArguments(MaxBatchOptions, LengthOptions, ContextOptions, SettingOptions, total=False):
    """Options of analyze(): a request, whose batch may be the largest that fits, and the setting."""

    tpot: Annotated[
        "float | None",
        replace(
            _TPOT,
            about="With --batch max, longest time per output token.",
            more="As expected where that is known, else at the bound.",
        ),
    ]


class RecordingArguments(BatchOptions, PromptOptions, ContextOptions, SettingOptions, total=False):
    """Options of a recorded pass: its batch and lengths, and the setting."""


class FigureArguments(BatchOptions, PromptOptions, FigureOptions, total=False):
    """Options of draw(): a batch, its prompts and the setting."""


class ExpertSharedOptions(ExpertStepOptions, ExpertOptions, PriceOptions, total=False):
    """A decode step and both sides."""


class ExpertSplitArguments(ExpertSharedOptions, total=False):
    """Options of afd_splits(): a decode step, both sides and the longest step."""

    tpot: Annotated[
        "float | None",
        replace(
            _TPOT,
            about="With --devices, longest step.",
            more="As expected where that is known, else at the bound.",
        ),
    ]


class ExpertArguments(ExpertBatchOptions, ExpertSharedOptions, total=False):
    """Options of afd(): decode steps and both sides."""


class DisaggregatedArguments(RequestOptions, DisaggregatedOptions, TransferOptions, total=False):
    """Options of disaggregate(): a request, both settings and the transfer between them."""


class SplitArguments(GenerationOptions, SplitOptions, total=False):
    """Options of split(): a generation and the setting."""


class SearchArguments(TargetOptions, GenerationOptions, SearchOptions, total=False):
    """Options of search(): targets, a generation and the setting."""

    latency: Annotated[
        "float | None", Parameter(about="Target: longest time of a whole request.", unit="s", metavar="TIME")
    ]


class AdviceLimits(TargetOptions, total=False):
    """Devices and times within which changes are tried."""

    max_devices: Annotated[
        int,
        replace(
            _MAX_DEVICES,
            about="Also try tensor and expert parallelism over 2, 4, ... up to this many devices (at most 64).",
        ),
    ]


class AdviceArguments(AdviceLimits, GenerationOptions, ServedOptions, total=False):
    """Options of advise(): limits, a generation and the setting."""


class ChoiceLimits(TargetOptions, total=False):
    """Precisions, devices and times within which a device is chosen."""

    quants: Annotated[
        Sequence[str],
        replace(
            _QUANTS,
            about="An allowed precision.",
            more="May be repeated. If not given, published, fp8, W8A8 and W4A16g128.",
        ),
    ]
    max_devices: Annotated[
        int,
        replace(
            _MAX_DEVICES,
            about="Maximum devices of a kind, on one host with tensor parallelism.",
            more="The smallest number that qualifies is ranked, of the numbers that divide the model.",
        ),
    ]


class ChoiceArguments(ChoiceLimits, LengthOptions, FleetOptions, PriceOptions, total=False):
    """Options of choose(): limits, lengths and all settings."""


class ComparedPrecisionOptions(TypedDict, total=False):
    """Precisions that are compared."""

    quants: Annotated[Sequence[str], replace(_QUANTS, more="May be repeated. If not given, the published one.")]


class ComparisonArguments(
    ComparedPrecisionOptions, BatchesOptions, LengthOptions, FleetOptions, PriceOptions, total=False
):
    """Options of compare(): precisions, batches, lengths and all settings."""


class PlanLimits(PercentileTargetOptions, total=False):
    """Precisions, devices and times within which a fleet is planned."""

    quants: Annotated[
        Sequence[str],
        replace(
            _QUANTS,
            about="A precision to consider.",
            more="May be repeated. If not given, published, fp8 and W8A8 with a KV cache of 8 bits (fp8KV8, W8A8KV8) "
            "and without, W4A16g128, W4A8g128 and KV8.",
        ),
    ]
    max_devices: Annotated[int, replace(_MAX_DEVICES, about="Maximum devices, of all replicas together.", default=16)]


class PlanArguments(PlanLimits, TransferOptions, RequestLengthOptions, FleetOptions, PriceOptions, total=False):
    """Options of plan(): limits, lengths and all settings."""


class SweepOptions(RequestOptions, CommonOptions, PassOptions, total=False):
    """Options of a sweep."""

    expected: Annotated[
        bool, Parameter(about="Also compute expected times, of the kernels of `library` or `engine`.", default=False)
    ]


PARAMETERS: Final = declared(SettingOptions)


def only(options: Mapping[str, object], kind: type[_O]) -> _O:
    """Selects the options that `kind` declares."""
    return cast("_O", {name: value for name, value in options.items() if name in kind.__annotations__})


def document_options(options: type) -> Callable[[_C], _C]:
    """A decorator that shows the options of `options` in the signature and docstring of a function that takes them."""

    def document(function: _C) -> _C:
        shape = signature(function)
        named = [each for each in shape.parameters.values() if each.kind is not Argument.VAR_KEYWORD]
        declarations = declared(options)
        keywords = [
            Argument(
                name, Argument.KEYWORD_ONLY, default=each.default, annotation=kind_of(options.__annotations__[name])
            )
            for name, each in declarations.items()
        ]
        function.__signature__ = shape.replace(parameters=[*named, *keywords])  # type: ignore[attr-defined]
        lines = (f"        {name}: {each.help}" for name, each in declarations.items())
        function.__doc__ = "\n".join((function.__doc__ or "", "    Options:", *lines))
        return function

    return document
