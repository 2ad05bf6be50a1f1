"""What a technique may do: the hooks, each of which leaves everything as it was unless a technique overrides it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import accumulate
from typing import ClassVar, Protocol

import numpy as np

from ..devices.hardware import Hardware
from ..forms import Num
from ..graph import Graph
from ..model import Model
from ..parallel.layout import Layout
from ..roofline import Plan
from ..workload import Spans, Workload
from ._parameters import check
from ._schedule import Schedule, each


class Kind(StrEnum):
    """Which part of the work it changes most."""

    DECODING = "decoding"
    ATTENTION = "attention and cache"
    COMPRESSION = "compression"
    GRAPH = "graph"
    INPUT = "input"


class Touches(StrEnum):
    """What does not stay as it was. NOTHING: the same weights write the same text. ANSWERS: the same weights write, or
    are told, something else. MODEL: there have to be weights that were trained, converted or pruned for it.
    """

    NOTHING = "nothing"
    ANSWERS = "answers"
    MODEL = "model"


class Network(Protocol):
    """What runs on some devices."""

    @property
    def graph(self) -> Graph: ...
    @property
    def decode_graph(self) -> Graph: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def decode_plan(self) -> Plan: ...


class Machine(Network, Protocol):
    """What a technique may ask of the setting that it is part of."""

    @property
    def model(self) -> Model: ...
    @property
    def hardware(self) -> Hardware: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def attention(self) -> str: ...
    def helper(self, model: Model, quant: str | None) -> Machine:
        """Another model on this device, with this attention and layout, in this precision where `quant` is None."""
        ...

    def planned(self, graph: Graph) -> Plan:
        """A graph laid out on the device."""
        ...


@dataclass(frozen=True, kw_only=True)
class Drafter:
    """What proposes tokens before each pass of the model that verifies them.

    widths  tokens of each sequence that each of its passes takes, one pass after the other
    reads   whether it has a cache of its own, for which it reads prompts too
    """

    name: str
    network: Network
    widths: tuple[int, ...]
    reads: bool = True

    @property
    def before(self) -> tuple[int, ...]:
        """Tokens that its passes have taken before each of them."""
        return tuple(accumulate(self.widths[:-1], initial=0))

    def passes(self, workload: Workload) -> Workload:
        """Those for each decode step of `workload`, on the last axis."""
        widths, before = (np.array(each, dtype=np.float64) for each in (self.widths, self.before))
        alike = len(set(self.widths)) == 1

        def spread(s: Spans) -> Spans:
            kv_len = np.asarray(s.kv_len, dtype=np.float64)[..., None] + before + widths - 1
            flat = kv_len.reshape(*kv_len.shape[:-2], -1)
            width = self.widths[0] if alike else np.broadcast_to(widths, kv_len.shape).reshape(flat.shape)
            return replace(s, q_len=width, kv_len=flat, logits=width, images=0)

        return each(workload, spread)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A number that says where a technique stands, None where there is none, and the words for it, "" where those of
    another have it.
    """

    key: str
    value: float | None
    text: str


@dataclass(frozen=True, kw_only=True)
class Technique:
    """Its fields are its parameters."""

    name: ClassVar[str] = ""
    kind: ClassVar[Kind]
    touches: ClassVar[Touches]
    predicts: ClassVar[bool] = False  # runs the layers of `mtp`, if not in every pass
    scheduled: ClassVar[bool] = False  # `drafter`, `step`, `leaves` and `known` say all that it makes of passes
    order: ClassVar[int] = 0  # lower ones change graph and passes before higher ones, whichever was asked for first

    def __post_init__(self) -> None:
        check(self, self.name)

    def __str__(self) -> str:
        values = ((f, getattr(self, f.name)) for f in fields(self))
        given = [f"{f.name}={_text(value)}" for f, value in values if value not in (f.default, None)]
        return f"{self.name}:{','.join(given)}" if given else self.name

    @property
    def decode_alone(self) -> bool:
        """Whether a decode step runs another graph than the prefill."""
        return False

    @property
    def quant(self) -> str:
        """The precision that it is, as --quant has it; "" where it is none."""
        return ""

    def network(self, graph: Graph, *, decode: bool) -> Graph:  # noqa: ARG002
        """The model's graph, before it is laid out on devices and quantized."""
        return graph

    def lowered(self, graph: Graph, hardware: Hardware, *, decode: bool) -> Graph:  # noqa: ARG002
        """The graph with its formats and fused attention, just before it runs."""
        return graph

    def prefill(self, workload: Workload) -> Workload:
        """The pass that reads the prompts; the last of them where there are several."""
        return workload

    def step(self, workload: Workload) -> Workload:
        """A pass that continues them."""
        return workload

    def kept(self, workload: Workload) -> Workload:
        """The sequences whose cache is held in the end."""
        return workload

    def schedule(self, schedule: Schedule, machine: Machine) -> Schedule:  # noqa: ARG002
        """The runs of a generation."""
        return schedule.map(
            first=lambda run: (replace(run, workload=self.prefill(run.workload)),) if run.main else (run,),
            rest=lambda run: (replace(run, workload=self.step(run.workload)),) if run.main else (run,),
        )

    def drafter(self, machine: Machine) -> Drafter | None:  # noqa: ARG002
        """What runs before each pass that continues the prompts."""
        return None

    @property
    def leaves(self) -> tuple[float, ...]:
        """How likely a pass that continues a sequence leaves at least 1, 2, ... tokens of it."""
        return (1.0,)

    def known(self, prompt: Num) -> Num:  # noqa: ARG002
        """Tokens of a prompt whose keys and values are there before it is read."""
        return 0.0

    def in_common(self, prompt: Num) -> Num:  # noqa: ARG002
        """Those of them that all prompts have in common, so that they are held once."""
        return 0.0

    def beside(self, machine: Machine) -> tuple[Graph, ...]:  # noqa: ARG002
        """Networks whose weights and caches are held besides the model's."""
        return ()

    def refuses(self, machine: Machine, others: Sequence[Technique]) -> str:  # noqa: ARG002
        """Why it makes no sense here, beside `others`; "" where it does."""
        return ""

    def findings(self, machine: Machine, step: Workload) -> tuple[Finding, ...]:  # noqa: ARG002
        """What is worth knowing of it at the decode `step` shown."""
        return ()

    def notes(self, machine: Machine) -> tuple[str, ...]:  # noqa: ARG002
        """Sentences that a reader of the results should know."""
        return ()

    @classmethod
    def values(cls) -> Mapping[str, str]:
        """What the names stand for that a parameter takes; nothing where they say it themselves."""
        return {}

    @classmethod
    def text(cls) -> str:
        """Its documentation."""
        return inspect.cleandoc(cls.__doc__ or "")


def altered(technique: Technique, *hooks: str) -> bool:
    """Whether it overrides one of the hooks."""
    return any(getattr(type(technique), hook) is not getattr(Technique, hook) for hook in hooks)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)
