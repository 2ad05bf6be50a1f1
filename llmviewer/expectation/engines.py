"""Serving engines: their kernel library, the time that they add to kernels, and what they do with memory.

Each is a file of engines/, whose numbers name their sources. Seven engines were measured side by side on one A100 80 GB
with LLaMA-2-7B, one sequence, 1024 prompt tokens and 128 generated ones (arXiv:2404.14294, table 6; without speculative
decoding). Kernel libraries were measured elsewhere (docs/accuracy.md). Engines with `fitted` have one number fitted to
their row of the table, which is then no test of them; for others the row is predicted. Engines without a row have
nothing fitted, and are tested against published measurements of whole servers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np

from .._layout import data_dir
from ..devices.hardware import Hardware
from ..documents import Section, read_yaml
from ..errors import InputError, suggest
from ..forms import Num
from ..records import frozen
from ..units import parse

TABLE: Final = "arXiv:2404.14294, table 6"
LOCAL: Final = "docs/serving.md#local-engines"
TOTAL, FREE, REST = "total", "free", "rest"  # what the memory fraction of an engine is of
PAGES, SPLIT, CONTEXT, SEQUENCES = "pages", "split", "context", "sequences"  # division of a pool among layers
_SEVERAL_DEVICES: Final = 4  # from which graphs are larger
ALL_REDUCE: Final = "all_reduce"  # in the operators of a fusion, beside kinds
QUANTIZE: Final = "quantize"

_VERSION: Final = re.compile(r"\d+(\.\d+)*")
_KEYS: Final = (
    "title", "aliases", "note", "version", "sources", "kernels", "host", "frontend", "schedulers", "cache", "memory",
    "fused", "overlap", "experts", "row", "servers", "limits", "earlier",
)  # fmt: skip


@frozen(kw_only=True)
class Host:
    """Host time of a step; none if a CUDA graph replays the kernels of successive steps.

    launch_s          host time per launch [s]
    prefill_launch_s  the same in a step with prefills, where it exceeds launch_s [s]
    step_s            time between two steps [s]
    launch_range      least and most host time per launch, over what is expected
    """

    launch_s: float = 0.0
    prefill_launch_s: float = 0.0
    step_s: float = 0.0
    launch_range: tuple[float, float] = (1.0, 1.0)

    def of_step(self, *, prefills: bool) -> Host:
        """The host in a step that prefills, or in one that only decodes."""
        launch_s = max(self.launch_s, self.prefill_launch_s) if prefills else self.launch_s
        return IDLE if launch_s == self.step_s == 0 else replace(self, launch_s=launch_s, prefill_launch_s=0.0)

    def time_s(self, kernels_s: Num, launches: Num) -> Num:
        """A step: its kernels, or its launches where those take longer, and what is between it and the next. [s]"""
        return np.maximum(kernels_s, launches * self.launch_s) + self.step_s


IDLE: Final = Host()


@frozen(kw_only=True)
class Frontend:
    """Path between a client and the steps of the scheduler: HTTP, tokenization, messages between processes.

    request_s    time that a request takes in the process of the server that accepts one after another [s]
    token_s      the same for each input token, which it tokenizes [s]
    response_s   time from the end of a step until clients have its tokens [s]
    ahead        whether a step is launched when the one before it starts, so that later requests join the next
    """

    request_s: float = 0.0
    token_s: float = 0.0
    response_s: float = 0.0
    ahead: bool = False


DIRECT: Final = Frontend()


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

    def limited(self, max_batch: int | None, tokens: int | None) -> Default:
        """The scheduler with another largest batch, or other tokens per step; None: its own."""
        policy, lockstep = (_with_tokens(one, tokens) if tokens else one for one in (self.policy, self.lockstep_policy))
        return self._replace(policy=policy, lockstep_policy=lockstep, max_batch=max_batch or self.max_batch)

    @property
    def tokens(self) -> int | None:
        """Most tokens of a step; None if the policy has no limit."""
        limit = re.search(r":(\d+)", self.policy)
        return int(limit[1]) if limit else None


def _with_tokens(policy: str, tokens: int) -> str:
    """A policy with `tokens` tokens per step; policies without a limit stay as they are."""
    return re.sub(r":\d+", f":{tokens}", policy, count=1)


@frozen(kw_only=True)
class LaunchFusion:
    """Operators that an engine runs in one launch.

    operators     their kinds in sequence; an all-reduce, ALL_REDUCE, comes first; the quantization of what a product
                  reads, QUANTIZE, comes last
    products      data types of the products whose inputs are quantized so
    library       library whose all-reduce it is; "": that of the engine
    on            generations of GPUs with this launch; empty: all
    experts_only  whether only models with experts have it
    max_tokens    tokens up to which an all-reduce is fused
    max_bytes     its longest message by number of devices, as (devices, B); empty: any
    """

    operators: tuple[str, ...]
    products: tuple[str, ...] = ()
    library: str = ""
    on: tuple[str, ...] = ()
    experts_only: bool = False
    max_tokens: float = inf
    max_bytes: tuple[tuple[int, float], ...] = ()

    def max_bytes_of(self, devices: int) -> float:
        """The longest message that so many devices fuse with what follows. [B]"""
        return dict(self.max_bytes).get(devices, 0.0) if self.max_bytes else inf


@frozen(kw_only=True)
class LaunchRules:
    """Division of operators among launches by an engine, beyond that of all measured libraries.

    fusions           operators in one launch
    has_cache_writes  whether new keys and values are written to the cache by a launch of its own before attention
    """

    fusions: tuple[LaunchFusion, ...] = ()
    has_cache_writes: bool = False

    def quantizes(self, writer: str, product: str) -> bool:
        """Whether an operator of kind `writer` also quantizes what a product of this data type reads."""
        return any(one.operators == (writer, QUANTIZE) and product in one.products for one in self.fusions)


PLAIN: Final = LaunchRules()


@frozen(kw_only=True)
class ExpertsKernel:
    """A kernel of experts that an engine selects by itself.

    name   part of the names of measured kernels
    types  data types of experts
    on     generations of GPUs by their matrix instructions
    """

    name: str
    types: tuple[str, ...]
    on: tuple[str, ...]


class Row(NamedTuple):
    """The row of an engine in the table.

    tokens_per_s  measured value [1/s]
    fitted        name of the number fitted to it; "" if the row is predicted
    """

    tokens_per_s: float
    fitted: str = ""


@frozen(kw_only=True)
class ServerOptions:
    """Options with which a server starts, as engines name them; None: the engine's default.

    version                 version of the engine; "": the newest that is known
    experts_kernel          part of the name of the kernel of experts (moe_backend, moe_runner_backend)
    memory_fraction         share of memory (gpu_memory_utilization, mem_fraction_static, free_gpu_memory_fraction)
    max_num_seqs            most running sequences of a replica, or of a rank of data parallelism
    max_num_batched_tokens  most tokens of a step
    max_model_len           most tokens of a request
    """

    version: str = ""
    experts_kernel: str = ""
    memory_fraction: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None


AS_SHIPPED: Final = ServerOptions()


@frozen(kw_only=True)
class Reserve:
    """Memory that an engine leaves free beside weights and caches, from which its memory fraction follows. [B]

    fixed              in any case
    per_token          for each token of a step, of which there are at least `least_tokens`
    per_sequence       for each sequence of the largest CUDA graph
    per_device         for each device
    per_rank_sequence  for each sequence of the largest CUDA graph of each rank of data parallelism; half as much again
                       from `large_batch` sequences on
    large, large_from  the least reserve, on devices of more memory than `large_from`
    draft              with a draft model
    graphs             (least memory of a device, largest CUDA graph on few devices, and on four or more)
    """

    fixed: float
    per_token: float
    least_tokens: int
    per_sequence: float
    per_device: float
    per_rank_sequence: float
    large_batch: int
    large: float
    large_from: float
    draft: float
    graphs: tuple[tuple[float, int, int], ...]

    def graph_batch(self, total: float, devices: int) -> int:
        """Sequences of the largest CUDA graph on devices of `total` bytes."""
        *_, (_, few, several) = (entry for entry in self.graphs if total >= entry[0])
        return several if devices >= _SEVERAL_DEVICES else few


@frozen(kw_only=True)
class MemoryRules:
    """Division of the memory of a device by an engine. [B]

    base           what its memory fraction is of: TOTAL memory, what is FREE before weights, or the REST that weights
                   and activations leave
    fraction       default memory fraction; None: what `reserve` leaves
    reserve        memory that is left free where there is no default fraction
    margin         memory that is left free where the greatest length is chosen by what fits
    profiles       whether the activations of a step are measured at start and reserved
    extra_tensors  tensors of hidden states that callers of layers keep alive beside those of the graph
    sampler        reserved for each token of the vocabulary and sequence of a step: logits, copies, order
    samples_all    whether logits of all tokens of a step are reserved, and else of one per sequence
    overhead       outside of tensors on a device alone, by contexts and libraries
    overhead_several  the same where devices communicate; `overhead` if 0
    overhead_doubling  further overhead with each doubling of the devices that communicate
    graph_bytes    of a CUDA graph, for each layer, where they count
    graphs_to      sequences of the largest CUDA graph
    pool           PAGES: groups of layers share blocks of one size; SPLIT: layers with states or windows have pools of
                   their own; CONTEXT: a cache of the greatest length for each sequence, or if none is given what fits;
                   SEQUENCES: a cache for each sequence
    states         size of the pool of states over that of the other layers
    state_slots    states that a running sequence needs
    windows        tokens of the pool of layers with windows over those of other layers
    by_group       whether the reported tokens are those of one group of layers, and else as many as requests of the
                   greatest length have
    host_embeddings  whether embeddings of tokens stay in host memory, unless the head has the same table
    mxfp4_multiple  multiple that the hidden width of experts in MXFP4 is padded to; 0: it is not
    whole_prompts  greatest length up to which a step takes prompts whole
    needs_longest  whether a server only starts if a request of the greatest length fits
    """

    base: str
    fraction: float | None = None
    reserve: Reserve | None = None
    margin: float = 0.0
    profiles: bool = False
    extra_tensors: int = 0
    sampler: float = 0.0
    samples_all: bool = False
    overhead: float = 0.0
    overhead_several: float = 0.0
    overhead_doubling: float = 0.0
    graph_bytes: float = 0.0
    graphs_to: int = 512
    pool: str = SEQUENCES
    states: float = 0.0
    state_slots: int = 1
    windows: float = 1.0
    by_group: bool = False
    host_embeddings: bool = False
    mxfp4_multiple: int = 0
    whole_prompts: int = 0
    needs_longest: bool = False


@frozen(kw_only=True)
class ServerSpread:
    """Measured over expected times of published servers: the ends between which eight of ten are.

    results  number of results
    """

    tpot: tuple[float, ...]
    ttft: tuple[float, ...]
    results: int


@frozen(kw_only=True)
class Engine:
    """A serving engine.

    version   version of its numbers; "" if they do not depend on it
    library   measured kernel library
    attention "flash" or "eager" (scores in memory)
    kernels   time of its kernels over that of the library's
    defaults  default schedulers; the last one that applies to a device is used
    block     tokens per block of its cache
    memory    what it does with memory; None if unknown
    launching  division of operators among launches
    experts           kernels of experts that it selects by itself
    experts_option    option of its server that chooses the kernel of experts; "" if unknown
    limited_products  data type of products that leave the cores of collectives free in whole prefills with two-batch
              overlap; "" for none
    has_staged_steps  whether halves of a batch that overlap take turns in fixed stages in steps without prefills
    row       row of the table; None if it has none
    servers   how far published servers were from expected times; None if none were compared
    options   options with which its server starts
    keeps_within_context  whether it refuses a max_model_len beyond the longest context of the model
    has_token_per_sequence  whether it refuses fewer tokens of a step than running sequences
    has_whole_passes  whether its whole passes were measured, but no single kernel (whole_passes.py)
    has_stand_in  whether the library's kernels stand in for its own, which were not measured
    """

    name: str
    title: str
    version: str = ""
    library: str
    attention: str = "flash"
    kernels: float = 1.0
    host: Host = IDLE
    frontend: Frontend = DIRECT
    defaults: tuple[Default, ...]
    block: int = 16
    memory: MemoryRules | None = None
    launching: LaunchRules = PLAIN
    experts: tuple[ExpertsKernel, ...] = ()
    experts_option: str = ""
    limited_products: str = ""
    has_staged_steps: bool = False
    row: Row | None = None
    servers: ServerSpread | None = None
    options: ServerOptions = AS_SHIPPED
    keeps_within_context: bool = False
    has_token_per_sequence: bool = False
    has_whole_passes: bool = False
    has_stand_in: bool = False
    note: str

    def default_on(self, hardware: Hardware) -> Default:
        """The default scheduler on a device, by its memory and name."""
        *_, meant = (default for default in self.defaults if default.meant_on(hardware))
        tokens, max_batch = self.options.max_num_batched_tokens, self.options.max_num_seqs
        if tokens and meant.max_batch and self.has_token_per_sequence:
            max_batch = max_batch or min(meant.max_batch, tokens)
        return meant.limited(max_batch, tokens)

    def check_starts(self, hardware: Hardware, max_context: int | None) -> None:
        """Raises InputError for options of the server with which it does not start.

        max_context  longest context of the model; None or 0: unknown
        """
        length, scheduler = self.options.max_model_len, self.default_on(hardware)
        if self.keeps_within_context and length and max_context and length > max_context:
            raise InputError(
                f"max_model_len must be at most the {max_context:,} tokens of the model's context, beyond which "
                f"{self.title} does not start; got {length:,}"
            )
        sequences, tokens = scheduler.max_batch or 0, scheduler.tokens or 0
        if self.has_token_per_sequence and sequences > tokens:
            raise InputError(
                f"max_num_batched_tokens must be at least max_num_seqs, or {self.title} does not start; got {tokens:,} "
                f"tokens of a step and {sequences:,} sequences"
            )

    def check_accepts(self, tokens: int) -> None:
        """Raises InputError if the server refuses a request of `tokens`, prompt and output."""
        length = self.options.max_model_len
        if length and tokens > length:
            raise InputError(
                f"max_model_len must be at least the {tokens:,} tokens of a request, prompt and output; {self.title} "
                f"refuses longer ones; got {length:,}"
            )

    @property
    def caveat(self) -> str:
        """Fitted numbers and stand-ins of its expected times, for the first line of a report; "" without any."""
        fitted = f"{self.row.fitted} fitted" if self.row and self.row.fitted else ""
        return ", ".join(filter(None, ("standing in for its own" if self.has_stand_in else "", fitted)))

    @property
    def description(self) -> str:
        """Derivation of its times, as text."""
        if self.has_whole_passes:
            return f"{self.title}: factors fitted to passes measured by its users ({LOCAL}). {self.note}"
        fitted = f"; its {self.row.fitted} was fitted to its row of {TABLE}" if self.row and self.row.fitted else ""
        return f"{self.title} on kernels of {self.library}{fitted}. {self.note}"


def find_engine(name: str, library: str = "", options: ServerOptions = AS_SHIPPED) -> Engine:
    """Returns an engine whose server starts with `options`.

    Raises InputError, with the nearest names, if it is unknown, or if another library is requested.
    """
    engine = replace(_read(_canonical_name(name), options.version), options=options)
    if library:
        raise InputError(f"library must be left out beside engine {name}, which runs kernels of {engine.library}")
    return engine


@cache
def engine_names() -> tuple[str, ...]:
    """Names of all engines."""
    return tuple(sorted(path.stem for path in data_dir("engines").glob("*.yaml")))


def _canonical_name(name: str) -> str:
    """The name of an engine, of which `name` may be another.

    Raises InputError, with the nearest names, if it is unknown.
    """
    names, lowered = engine_names(), name.lower()
    if lowered in names:
        return lowered
    for canonical in names:
        if lowered in read_yaml(data_dir("engines") / f"{canonical}.yaml").texts("aliases"):
            return canonical
    raise InputError(f"no engine {name!r}; {suggest(name, names)}")


@cache
def _read(name: str, version: str) -> Engine:
    file = read_yaml(data_dir("engines") / f"{name}.yaml")
    _check_keys(file)
    newest = file.text("version", "")
    if version and not _VERSION.fullmatch(version):
        raise InputError(f"engine version must be numbers with dots, such as {newest or '1.0'}; got {version!r}")
    earlier = file.sections("earlier") if version and file.has("earlier") else []
    for change in earlier:
        if _order(version) < _order(change.text("before")):
            file = file.with_data(_merged(file.data, {k: v for k, v in change.data.items() if k != "before"}))
    kernels = file.section("kernels")
    return Engine(
        name=name, title=file.text("title"), note=file.text("note"), version=version or newest,
        library=_plain(kernels, "library"), attention=_plain(kernels, "attention", "flash"),
        kernels=_plain(kernels, "factor", 1.0), experts_option=_plain(kernels, "experts_option", ""),
        has_stand_in=_plain(kernels, "stand_in", default=False),
        has_whole_passes=_plain(kernels, "whole_passes", default=False),
        host=_host(file.section("host")) if file.has("host") else IDLE,
        frontend=_frontend(file.section("frontend")) if file.has("frontend") else DIRECT,
        defaults=tuple(_default(part) for part in file.sections("schedulers")),
        memory=_memory(file.section("memory")) if file.has("memory") else None,
        launching=LaunchRules(
            fusions=tuple(map(_fusion, file.sections("fused"))) if file.has("fused") else (),
            has_cache_writes=_plain(file.section("cache"), "has_writes", default=False) if file.has("cache") else False,
        ),
        experts=tuple(map(_experts, file.sections("experts"))) if file.has("experts") else (),
        row=_row(file.section("row")) if file.has("row") else None,
        servers=_servers(file.section("servers")) if file.has("servers") else None,
        **(_overlap(file.section("overlap")) if file.has("overlap") else {}),
        **(_stated(file.section("cache"), ("block",)) if file.has("cache") else {}),
        **(_stated(file.section("limits"), _LIMITS) if file.has("limits") else {}),
    )  # fmt: skip


_LIMITS: Final = ("keeps_within_context", "has_token_per_sequence")
_PROVENANCE: Final = ("value", "source", "note")  # keys of a number that has its own source


def _check_keys(file: Section, *others: str) -> None:
    """Raises InputError for an unknown key of a file or of its sections.

    others  keys of a file beside those of an engine
    """
    file.only((*_KEYS, *others))
    for name, keys in _SECTION_KEYS.items():
        if file.has(name):
            is_list = isinstance(file.get(name), list)
            for part in file.sections(name) if is_list else [file.section(name)]:
                _check_section(part, keys)
    if file.has("sources"):
        sources = file.section("sources")
        for name in sources.data:
            sources.section(name).only(_SOURCE)
    for change in file.sections("earlier") if file.has("earlier") else []:
        _check_keys(change, "before")


def _check_section(part: Section, keys: Iterable[str]) -> None:
    """Raises InputError for an unknown key of a section, or of a number with its own source."""
    part.only((*keys, "source", "note"))
    for key in part.data:
        if isinstance(part.get(key), Mapping) and key not in ("reserve", "max_bytes"):
            part.section(key).only(_PROVENANCE)
    if part.has("reserve"):
        reserve = part.section("reserve")
        _check_section(reserve, (*_RESERVED, "least_tokens", "large_batch", "graphs"))
        for graphs in reserve.sections("graphs"):
            _check_section(graphs, ("from", "few", "several"))


def _overlap(part: Section) -> dict[str, Any]:
    return {
        "limited_products": _plain(part, "products"),
        "has_staged_steps": _plain(part, "staged_steps", default=False),
    }


def _host(part: Section) -> Host:
    launch_s, prefill_launch_s, step_s, least_s, most_s = (_quantity(part, key, "s") for key in _SECTION_KEYS["host"])
    longer_s = max(launch_s, prefill_launch_s)
    ends = ((least_s or longer_s) / longer_s, (most_s or longer_s) / longer_s) if longer_s else (1.0, 1.0)
    return Host(launch_s=launch_s, prefill_launch_s=prefill_launch_s, step_s=step_s, launch_range=ends)


def _frontend(part: Section) -> Frontend:
    times = {f"{key}_s": _quantity(part, key, "s") for key in ("request", "token", "response")}
    return Frontend(**times, ahead=_plain(part, "ahead", default=False))


def _fusion(part: Section) -> LaunchFusion:
    sizes = part.section("max_bytes") if part.has("max_bytes") else None
    return LaunchFusion(
        operators=part.texts("operators"), products=part.texts("products"), on=part.texts("on"),
        library=_plain(part, "all_reduce_of", ""),
        experts_only=_plain(part, "experts_only", default=False), max_tokens=_plain(part, "max_tokens", inf),
        max_bytes=tuple((int(key), _quantity(sizes, key, "B")) for key in sizes.data) if sizes else (),
    )  # fmt: skip


def _experts(part: Section) -> ExpertsKernel:
    return ExpertsKernel(name=_plain(part, "kernel"), types=part.texts("types"), on=part.texts("on"))


def _default(part: Section) -> Default:
    return Default(
        policy=_plain(part, "policy"), gib=_quantity(part, "from", "B") / 2**30, but=_plain(part, "but", ""),
        max_batch=_plain(part, "max_num_seqs", None), lockstep_policy=_plain(part, "lockstep_policy", ""),
    )  # fmt: skip


def _memory(part: Section) -> MemoryRules:
    sizes: dict[str, Any] = {key: _quantity(part, key, "B") for key in _SIZES}
    return MemoryRules(
        base=part.choice("of", (TOTAL, FREE, REST)),
        reserve=_reserve(part.section("reserve")) if part.has("reserve") else None,
        pool=part.choice("pool", (PAGES, SPLIT, CONTEXT, SEQUENCES), SEQUENCES), **sizes,
        **_stated(part, _PLAIN_RULES),
    )  # fmt: skip


_SIZES: Final = ("margin", "sampler", "overhead", "overhead_several", "overhead_doubling", "graph_bytes")
_PLAIN_RULES: Final = (
    "fraction", "profiles", "graphs_to", "states", "state_slots", "windows", "by_group", "host_embeddings",
    "mxfp4_multiple", "whole_prompts", "needs_longest", "samples_all", "extra_tensors",
)  # fmt: skip


_RESERVED: Final = (
    "fixed", "per_token", "per_sequence", "per_device", "per_rank_sequence", "large", "large_from", "draft",
)  # fmt: skip
_SOURCE: Final = ("title", "page", "version", "year", "url")
_SECTION_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "kernels": ("library", "attention", "factor", "whole_passes", "experts_option", "stand_in"),
    "host": ("launch", "prefill_launch", "step", "least_launch", "most_launch"),
    "frontend": ("request", "token", "response", "ahead"),
    "schedulers": ("policy", "from", "but", "max_num_seqs", "lockstep_policy"), "cache": ("block", "has_writes"),
    "memory": ("of", "pool", "reserve", *_SIZES, *_PLAIN_RULES), "row": ("tokens_per_s", "fitted"),
    "limits": _LIMITS, "servers": ("tpot", "ttft", "results"),
    "overlap": ("products", "staged_steps"), "experts": ("kernel", "types", "on"),
    "fused": ("operators", "products", "all_reduce_of", "on", "experts_only", "max_tokens", "max_bytes"),
}  # fmt: skip


def _reserve(part: Section) -> Reserve:
    graphs = (
        (_quantity(one, "from", "B"), one.integer("few"), one.integer("several")) for one in part.sections("graphs")
    )
    return Reserve(
        **{key: _quantity(part, key, "B") for key in _RESERVED}, least_tokens=part.integer("least_tokens"),
        large_batch=part.integer("large_batch"), graphs=tuple(graphs),
    )  # fmt: skip


def _row(part: Section) -> Row:
    return Row(tokens_per_s=_plain(part, "tokens_per_s"), fitted=_plain(part, "fitted", ""))


def _servers(part: Section) -> ServerSpread:
    tpot, ttft = ((span[0], span[1]) for span in (_plain(part, "tpot"), _plain(part, "ttft")))
    return ServerSpread(tpot=tpot, ttft=ttft, results=_plain(part, "results"))


_MISSING: Final = object()


def _plain(part: Section, key: str, default: Any = _MISSING) -> Any:
    """The value of a key: plain, or `{value, source, note}` if its source differs from that of its section.

    Raises InputError if it is missing and has no default.
    """
    value = part.get(key)
    if isinstance(value, Mapping):
        value = value.get("value")
    if value is None and default is _MISSING:
        raise part.error(key, "is missing")
    return default if value is None else value


def _stated(part: Section, keys: Iterable[str]) -> dict[str, Any]:
    """The values of those keys that a section has; others keep the defaults of their fields."""
    values = {key: _plain(part, key, None) for key in keys}
    return {key: value for key, value in values.items() if value is not None}


def _quantity(part: Section, key: str, unit: str) -> float:
    """A quantity with a unit, such as "0.1 GiB"; 0 if it is left out."""
    text = _plain(part, key, None)
    if text is None:
        return 0.0
    try:
        return parse(text, unit)
    except ValueError as error:
        raise part.error(key, str(error)) from None


def _merged(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with the values of another, mappings within merged."""
    result = dict(data)
    for key, value in changes.items():
        ours = result.get(key)
        result[key] = _merged(ours, value) if isinstance(ours, Mapping) and isinstance(value, Mapping) else value
    return result


def _order(version: str) -> tuple[int, ...]:
    """The numbers of a version, by which versions are ordered."""
    return tuple(map(int, version.split(".")))
