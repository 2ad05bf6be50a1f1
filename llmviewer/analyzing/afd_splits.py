"""afd_splits(): the best division of a number of devices between attention and experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, ClassVar, Final, Unpack

import numpy as np

from .. import __version__, arguments
from ..devices.files import changes_by_device
from ..devices.hardware import Hardware
from ..errors import InputError
from ..model import Model
from ..model_files import load_model
from ..operators.linear import ExpertsLinear
from ..options import ExpertOptions, document_options
from ..parallel.layout import Layout
from ..records import frozen
from ..rows import Rows
from ..setting import Setting, whole_number
from .afd import SCHEMA_VERSION, ExpertDisaggregation, afd

_TENSOR: Final = (1, 2, 4, 8)  # degrees of tensor parallelism of attention
_MOST_EACH: Final = 4096  # most sequences per attention device
_STEP: Final = 1.3  # ratio of successive batches in the coarse search
_BETWEEN: Final = 24  # batches in the fine search around the best of the coarse one
_OF_ONE: Final = ("attention layout", "expert devices")  # inputs that differ between splits


@frozen(kw_only=True)
class Split:
    """Decode steps of one split, and the index of its best batch."""

    found: ExpertDisaggregation
    at: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second and device. [1/s]"""
        return float(self.found.tokens_per_s[self.at])

    def row(self) -> dict[str, Any]:
        layouts = {
            "attention_layout": str(self.found.attention.layout),
            "expert_devices": self.found.experts.layout.devices,
        }
        return layouts | list(self.found.rows())[self.at]


@frozen(kw_only=True, repr=False)
class Splits(Rows):
    """Splits of `devices` that fit and take at most `tpot` [s] per step, the fastest first; `tried` is how many splits
    were tried.
    """

    report: ClassVar = "afd_splits"

    devices: int
    tpot: float | None
    tried: int
    splits: tuple[Split, ...]

    def rows(self) -> Iterator[dict[str, Any]]:
        return (split.row() for split in self.splits)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The arguments."""
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


@document_options(ExpertOptions)
def afd_splits(
    model: str | Model,
    attention_hardware: str | Hardware,
    expert_hardware: str | Hardware,
    *,
    devices: int,
    tpot: float | None = None,
    kv_len: int = 4096,
    micro_batches: int = 0,
    link: str = "scale-out",
    years: float | None = None,
    **options: Unpack[ExpertOptions],
) -> Splits:
    """All splits of `devices` between attention and experts, each with the batch and micro-batches of most tokens per
    second. Attention has degrees of tp of 1, 2, 4 and 8.

    tpot   longest step, as expected, else at the bound [s]

    The other arguments and the options are as in afd().

    Raises InputError if an argument is invalid, the model has no experts, or no split fits the memory within `tpot`.
    """
    arguments.check_types(model=model)
    loaded = load_model(model) if isinstance(model, str) else model
    given = arguments.with_defaults(options, ExpertOptions)
    number, copies = (
        whole_number("devices", devices, least=2),
        whole_number("redundant_experts", given["redundant_experts"], least=0),
    )
    arguments.check_positive(tpot=tpot)
    sides = {"attention_hardware": attention_hardware, "expert_hardware": expert_hardware}
    own = zip(sides.items(), changes_by_device(tuple(sides.values()), given["hardware_set"]), strict=True)
    asked: dict[str, Any] = {
        "model": loaded, "kv_len": kv_len, "micro_batches": micro_batches, "link": link, "years": years,
        **{name: Setting.of(loaded, one, hardware_set=changes).hardware for (name, one), changes in own},
        **options, "hardware_set": (),
    }  # fmt: skip
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
        goal = f" with a step of at most {tpot:g} s" if tpot else ""
        hint = "give more devices or a longer tpot" if tpot else "give more devices"
        raise InputError(f"no split of {number} devices fits in memory{goal}", hint=hint)
    found.sort(key=lambda split: -split.tokens_per_s)
    return Splits(devices=number, tpot=tpot, tried=tried, splits=tuple(found))


def _layouts(model: Model, devices: int, copies: int) -> Iterator[tuple[Layout, int]]:
    """(layout of attention, number of expert devices), which divides the experts and their copies."""
    experts = {op.weight.shape[0] for _, op in model.graph if isinstance(op, ExpertsLinear)}
    if not experts:
        raise InputError(f"{model.name} has no experts that could be on devices of their own")
    for many in range(1, devices):
        if not any((number + copies) % many for number in experts):
            rest = devices - many
            yield from ((Layout(tp=tp, dp=rest // tp), many) for tp in _TENSOR if rest % tp == 0)


def _best(layout: Layout, tpot: float, question: Mapping[str, Any]) -> Split | None:
    """The split at the batch with most tokens per second; None if no batch fits within `tpot`."""
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
