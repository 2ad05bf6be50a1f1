"""`Technique`: hooks by which a technique changes graph, passes and memory; by default they change nothing."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from itertools import accumulate
from typing import ClassVar, Protocol

import numpy as np

from ..devices.hardware import Hardware
from ..expectation.engines import Engine
from ..forms import Num
from ..graph import Graph
from ..model import Model
from ..parallel.layout import Layout
from ..records import frozen
from ..roofline import Plan
from ..workload import Spans, Workload
from ._parameters import check_parameters
from ._schedule import Schedule, each


class Kind(StrEnum):
    """The part of the work that a technique changes most."""

    DECODING = "decoding"
    ATTENTION = "attention and cache"
    COMPRESSION = "compression"
    GRAPH = "graph"
    INPUT = "input"


class Requirement(StrEnum):
    """Requirement for switching on a technique, in increasing order.

    NOTHING       nothing: the same weights generate the same text
    OTHER_OUTPUT  changed outputs: the same weights generate other text, or get another prompt
    DRAFT_MODEL   a draft model or draft heads in addition to the same weights
    NEW_WEIGHTS   weights that were trained, converted or pruned for it
    """

    NOTHING = "nothing"
    OTHER_OUTPUT = "answers"
    DRAFT_MODEL = "draft"
    NEW_WEIGHTS = "model"
    ANSWERS, DRAFT, MODEL = OTHER_OUTPUT, DRAFT_MODEL, NEW_WEIGHTS  # names of the last release

    @property
    def description(self) -> str:
        """The requirement in words, for headings."""
        return {
            Requirement.NOTHING: "with the same weights and the same answers",
            Requirement.OTHER_OUTPUT: "with the same weights and other answers",
            Requirement.DRAFT_MODEL: "with a draft or heads of its own",
            Requirement.NEW_WEIGHTS: "with weights made for it",
        }[self]


class GraphView(Protocol):
    """Graphs and plans of a network on the devices."""

    @property
    def graph(self) -> Graph: ...
    @property
    def decode_graph(self) -> Graph: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def decode_plan(self) -> Plan: ...


class SettingView(GraphView, Protocol):
    """The properties of its setting that a technique can read."""

    @property
    def model(self) -> Model: ...
    @property
    def hardware(self) -> Hardware: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def attention(self) -> str: ...
    @property
    def engine(self) -> Engine | None: ...
    def helper(self, model: Model, quant: str | None) -> SettingView:
        """`model` on the same devices, attention and layout; in the precision of the setting if `quant` is None."""
        ...

    def planned(self, graph: Graph) -> Plan:
        """`graph` laid out on the devices."""
        ...


@frozen(kw_only=True)
class Drafter:
    """A network that drafts tokens before each verification.

    widths  tokens of a sequence in each of its consecutive passes, of all networks of this size
    reads   whether it has its own cache, so that it also prefills prompts
    models  networks of this size that draft one after another, in as many passes each
    """

    name: str
    network: GraphView
    widths: tuple[int, ...]
    reads: bool = True
    models: int = 1

    @property
    def before(self) -> tuple[int, ...]:
        """Tokens in the passes of the same network before each pass."""
        own_widths = self.widths[: len(self.widths) // self.models]
        return tuple(accumulate(own_widths[:-1], initial=0)) * self.models

    def passes(self, workload: Workload) -> Workload:
        """The drafter's passes for each decode step of `workload`, along the last axis."""
        widths, before = (np.array(each, dtype=np.float64) for each in (self.widths, self.before))
        alike = len(set(self.widths)) == 1

        def spread(s: Spans) -> Spans:
            kv_len = np.asarray(s.kv_len, dtype=np.float64)[..., None] + before + widths - 1
            flat = kv_len.reshape(*kv_len.shape[:-2], -1)
            width = self.widths[0] if alike else np.broadcast_to(widths, kv_len.shape).reshape(flat.shape)
            batch = np.repeat(s.batch, len(widths), axis=-1) if np.shape(s.batch)[-1:] > (1,) else s.batch
            return replace(s, batch=batch, q_len=width, kv_len=flat, logits=width, images=0)

        return each(workload, spread)


@frozen(kw_only=True)
class Finding:
    """A number about a technique in a setting, with its sentence.

    value  None if undefined
    text   "" if the sentence of another finding contains the number
    """

    key: str
    value: float | None
    text: str


@frozen(kw_only=True)
class Technique:
    """Base class of techniques; fields are parameters."""

    name: ClassVar[str] = ""
    kind: ClassVar[Kind]
    requires: ClassVar[Requirement]
    runs_mtp_layers: ClassVar[bool] = False  # runs the multi-token prediction layers, though not in every pass
    # Whether `drafter`, `step`, `acceptance_probabilities` and `cached_prefix_tokens` describe all changes to passes.
    simulatable: ClassVar[bool] = False
    one_pass: ClassVar[bool] = False  # changes the passes of models that do not generate token by token
    order: ClassVar[int] = 0  # lower ones apply first
    assumption: ClassVar[str] = ""  # what default parameters assume of the requests, in words

    def __post_init__(self) -> None:
        check_parameters(self, self.name)

    def __str__(self) -> str:
        values = ((f, getattr(self, f.name)) for f in fields(self))
        texts = [f"{f.name}={_text(value)}" for f, value in values if value not in (f.default, None)]
        return f"{self.name}:{','.join(texts)}" if texts else self.name

    def baseline(self) -> Technique:
        """The technique that its effect is compared with, if it changes the passes of models that do not generate."""
        return self

    @property
    def separate_decode_graph(self) -> bool:
        """Whether a decode step runs another graph than the prefill."""
        return False

    @property
    def quant(self) -> str:
        """The precision that the technique sets, as for --quant; "" if none."""
        return ""

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        """The model's graph with the technique, before layout and quantization."""
        return graph

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        """The graph with the technique, after all other lowering (formats, fused attention)."""
        return graph

    def prefill(self, workload: Workload) -> Workload:
        """The pass that processes the prompts; the last one if there are several."""
        return workload

    def step(self, workload: Workload) -> Workload:
        """A decode pass."""
        return workload

    def retained_cache(self, workload: Workload) -> Workload:
        """The sequences whose cache is in memory at the end of the generation, as a workload."""
        return workload

    def schedule(self, schedule: Schedule, setting: SettingView) -> Schedule:  # noqa: ARG002
        """The runs of a generation."""
        return schedule.map(
            first=lambda run: (replace(run, workload=self.prefill(run.workload)),) if run.main else (run,),
            rest=lambda run: (replace(run, workload=self.step(run.workload)),) if run.main else (run,),
        )

    def drafter(self, setting: SettingView) -> Drafter | None:  # noqa: ARG002
        """The network that drafts tokens before each decode pass; None if there is none."""
        return None

    @property
    def acceptance_probabilities(self) -> tuple[float, ...]:
        """Probabilities that a decode pass yields at least 1, 2, ... tokens of a sequence."""
        return (1.0,)

    def cached_prefix_tokens(self, prompt: Num) -> Num:  # noqa: ARG002
        """Tokens of a prompt that are cached before the prefill."""
        return 0.0

    def shared_prefix_tokens(self, prompt: Num) -> Num:  # noqa: ARG002
        """Cached tokens that all prompts share, so that they are stored once."""
        return 0.0

    def auxiliary_graphs(self, setting: SettingView) -> tuple[Graph, ...]:  # noqa: ARG002
        """Graphs of further networks whose weights and caches occupy memory, such as a draft model."""
        return ()

    def incompatibility(self, setting: SettingView, others: Sequence[Technique]) -> str:  # noqa: ARG002
        """The reason why the technique does not work in `setting` or together with `others`; "" if it does."""
        return ""

    def findings(self, setting: SettingView, step: Workload) -> tuple[Finding, ...]:  # noqa: ARG002
        """Numbers about the technique at decode step `step`."""
        return ()

    def notes(self, setting: SettingView) -> tuple[str, ...]:  # noqa: ARG002
        """Notes for the report."""
        return ()

    @classmethod
    def values(cls) -> Mapping[str, str]:
        """Descriptions of the names that a parameter accepts, for names that need one."""
        return {}

    @classmethod
    def text(cls) -> str:
        """The docstring of the technique: a summary and labeled sections."""
        return inspect.cleandoc(cls.__doc__ or "")


def overrides(technique: Technique, *hooks: str) -> bool:
    """Whether the technique overrides one of the hooks."""
    return any(getattr(type(technique), hook) is not getattr(Technique, hook) for hook in hooks)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)
