"""afd_splits(): of so many devices, how many should have attention and how many experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np

from .. import __version__, arguments
from ..devices.hardware import Hardware
from ..errors import InputError
from ..model import Model
from ..model_files import load_model
from ..operators.linear import ExpertsLinear
from ..parallel.layout import Layout
from ..setting import Setting, whole
from .afd import SCHEMA_VERSION, ExpertDisaggregation, afd

_TENSOR: Final = (1, 2, 4, 8)  # degrees of tensor parallelism of attention
_MOST_EACH: Final = 4096  # sequences of a device of attention
_STEP: Final = 1.3  # from one batch to the next that is tried first
_BETWEEN: Final = 24  # that are tried around the best of those
_OF_ONE: Final = ("attention layout", "expert devices")  # of what was asked, what splits do not share


@dataclass(frozen=True, kw_only=True)
class Split:
    """Decode steps of one split, and the place of its best batch there."""

    found: ExpertDisaggregation
    at: int

    @property
    def tokens_per_s(self) -> float:
        """Of one device, on average."""
        return float(self.found.tokens_per_s[self.at])

    def row(self) -> dict[str, Any]:
        layouts = {
            "attention_layout": str(self.found.attention.layout),
            "expert_devices": self.found.experts.layout.devices,
        }
        return layouts | list(self.found.rows())[self.at]


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Of the splits of `devices` that were `tried`, those that fit and write tokens within `tpot` [s], the fastest
    first.
    """

    devices: int
    tpot: float | None
    tried: int
    splits: tuple[Split, ...]

    def rows(self) -> Iterator[dict[str, Any]]:
        return (split.row() for split in self.splits)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What was asked."""
        shared = {name: value for name, value in self.splits[0].found.inputs.items() if name not in _OF_ONE}
        return shared | {"devices": self.devices, "tpot": self.tpot}

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "inputs": {name.replace(" ", "_"): value for name, value in self.inputs.items()},
            "tried": self.tried,
            "splits": list(self.rows()),
        }


def afd_splits(
    model: str | Model,
    attention_hardware: str | Hardware,
    expert_hardware: str | Hardware,
    *,
    devices: int,
    tpot: float | None = None,
    redundant_experts: int = 0,
    hardware_set: Sequence[str] = (),
    **asked: Any,
) -> Splits:
    """Every split of `devices` between attention, of all degrees of tp up to 8, and experts, each with the batch and
    micro-batches that write most tokens.

    tpot   the longest step, as expected where that is known [s]
    asked  other arguments of afd(), which says what they are

    Raises InputError where something given cannot be used, where the model has no experts, and where no split fits in
    memory and keeps to `tpot`.
    """
    arguments.check(model=model)
    loaded = load_model(model) if isinstance(model, str) else model
    number, copies = whole("devices", devices, least=2), whole("redundant_experts", redundant_experts, least=0)
    arguments.positive(tpot=tpot)
    sides = {"attention_hardware": attention_hardware, "expert_hardware": expert_hardware}
    asked |= {name: Setting.of(loaded, one, hardware_set=hardware_set).hardware for name, one in sides.items()}
    asked |= {"model": loaded, "redundant_experts": copies}
    found: list[Split] = []
    tried, refused = 0, []
    for layout, many in _layouts(loaded, number, copies):
        tried += 1
        try:
            if split := _best(layout, tpot or inf, asked | {"expert_devices": many}):
                found.append(split)
        except InputError as error:
            refused.append(error)
    if tried == len(refused) > 0:
        raise refused[0]
    if not found:
        goal = f" and writes a token each in {tpot:g} s" if tpot else ""
        raise InputError(f"no split of {number} devices fits in memory{goal}", hint="give more devices, or more time")
    found.sort(key=lambda split: -split.tokens_per_s)
    return Splits(devices=number, tpot=tpot, tried=tried, splits=tuple(found))


def _layouts(model: Model, devices: int, copies: int) -> Iterator[tuple[Layout, int]]:
    """Of attention, and how many devices, which divide the experts and their copies, have those."""
    experts = {op.weight.shape[0] for _, op in model.graph if isinstance(op, ExpertsLinear)}
    if not experts:
        raise InputError(f"{model.name} has no experts that could be on devices of their own")
    for many in range(1, devices):
        if not any((number + copies) % many for number in experts):
            rest = devices - many
            yield from ((Layout(tp=tp, dp=rest // tp), many) for tp in _TENSOR if rest % tp == 0)


def _best(layout: Layout, tpot: float, question: Mapping[str, Any]) -> Split | None:
    """With the batch that writes most tokens; None where none fits, or keeps to `tpot`."""
    each = np.unique(np.rint(_STEP ** np.arange(np.log(_MOST_EACH) / np.log(_STEP) + 1)))
    for _ in range(2):
        found = afd(batch=[int(n) for n in layout.dp * each], attention_layout=layout, **question)
        able = found.fits & (found.likely.step_s <= tpot)
        if not able.any():
            return None
        at = int(np.argmax(np.where(able, found.tokens_per_s, 0)))
        below, above = float(each[max(at - 1, 0)]), float(each[min(at + 1, len(each) - 1)])
        each = np.unique(np.append(np.rint(np.linspace(below, above, _BETWEEN)), each[at]))
    return Split(found=found, at=at)
