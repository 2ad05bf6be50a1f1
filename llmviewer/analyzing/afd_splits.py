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
from ..options import ExpertOptions, ExpertSplitArguments, ExpertStepOptions, document_options, only
from ..parallel.layout import Layout
from ..records import frozen
from ..rows import Rows
from ..setting import Setting, opened, whole_number
from .afd import SCHEMA_VERSION, ExpertDisaggregation, afd

_TENSOR_DEGREES: Final = (1, 2, 4, 8)  # degrees of tensor parallelism of attention
_MAX_DEVICE_BATCH: Final = 4096  # most sequences per attention device
_BATCH_RATIO: Final = 1.3  # ratio of successive batches in the coarse search
_FINE_BATCHES: Final = 24  # batches in the fine search around the best of the coarse one
_SPLIT_INPUTS: Final = ("attention layout", "expert devices")  # inputs that differ between splits


@frozen(kw_only=True)
class Split:
    """Decode steps of one split, and the place of its best batch."""

    result: ExpertDisaggregation
    place: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second and device. [1/s]"""
        return float(self.result.tokens_per_s[self.place])

    def row(self) -> dict[str, Any]:
        """The row of the best batch, with the layouts of both sides."""
        layouts = {
            "attention_layout": str(self.result.attention.layout),
            "expert_devices": self.result.experts.layout.devices,
        }
        return layouts | list(self.result.rows())[self.place]


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
        """One row per split."""
        return (split.row() for split in self.splits)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The arguments."""
        shared = {name: value for name, value in self.splits[0].result.inputs.items() if name not in _SPLIT_INPUTS}
        return shared | {"devices": self.devices, "tpot": self.tpot}

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/afd.md has its keys."""
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "inputs": {name.replace(" ", "_"): value for name, value in self.inputs.items()},
            "tried": self.tried,
            "splits": list(self.rows()),
        }


@document_options(ExpertSplitArguments)
def afd_splits(
    model: str | Model | Setting,
    attention_hardware: str | Hardware | None = None,
    expert_hardware: str | Hardware | None = None,
    *,
    devices: int,
    **options: Unpack[ExpertSplitArguments],
) -> Splits:
    """All splits of `devices` between attention and experts, each with the batch and micro-batches of most tokens per
    second. Attention has degrees of tp of 1, 2, 4 and 8.

    devices  of both sides together

    The other arguments and the options are as in afd().

    Raises InputError if an argument is invalid, the model has no experts, or no split fits the memory within `tpot`.
    """
    values = arguments.with_defaults(options, ExpertSplitArguments)
    tpot = values["tpot"]
    model, attention_hardware, side_options = opened(
        model, attention_hardware, only(options, ExpertOptions), ExpertOptions
    )
    expert_hardware = attention_hardware if expert_hardware is None else expert_hardware
    arguments.check_types(model=model)
    loaded = load_model(model) if isinstance(model, str) else model
    all_options = arguments.with_defaults(side_options, ExpertOptions)
    device_count, copies = (
        whole_number("devices", devices, least=2),
        whole_number("redundant_experts", all_options["redundant_experts"], least=0),
    )
    arguments.check_positive(tpot=tpot)
    sides = {"attention_hardware": attention_hardware, "expert_hardware": expert_hardware}
    changed_sides = zip(
        sides.items(), changes_by_device(tuple(sides.values()), all_options["hardware_set"]), strict=True
    )
    question: dict[str, Any] = {
        "model": loaded, "years": values["years"], **only(values, ExpertStepOptions),
        **{name: Setting.of(loaded, one, hardware_set=changes).hardware for (name, one), changes in changed_sides},
        **side_options, "hardware_set": (),
    }  # fmt: skip
    splits: list[Split] = []
    tried, refused = 0, []
    for layout, expert_devices in _layouts(loaded, device_count, copies):
        tried += 1
        try:
            if split := _best(layout, tpot or inf, question | {"expert_devices": expert_devices}):
                splits.append(split)
        except InputError as error:
            refused.append(error)
    if tried == len(refused) > 0:
        raise refused[0]
    if not splits:
        target = f" with a step of at most {tpot:g} s" if tpot else ""
        hint = "give more devices or a longer tpot" if tpot else "give more devices"
        raise InputError(f"no split of {device_count} devices fits in memory{target}", hint=hint)
    splits.sort(key=lambda split: -split.tokens_per_s)
    return Splits(devices=device_count, tpot=tpot, tried=tried, splits=tuple(splits))


def _layouts(model: Model, devices: int, copies: int) -> Iterator[tuple[Layout, int]]:
    """(layout of attention, number of expert devices), which divides the experts and their copies."""
    experts = {op.weight.shape[0] for _, op in model.graph if isinstance(op, ExpertsLinear)}
    if not experts:
        raise InputError(f"{model.name} has no routed experts to put on separate devices")
    for expert_devices in range(1, devices):
        if not any((number + copies) % expert_devices for number in experts):
            rest = devices - expert_devices
            yield from ((Layout(tp=tp, dp=rest // tp), expert_devices) for tp in _TENSOR_DEGREES if rest % tp == 0)


def _best(layout: Layout, tpot: float, question: Mapping[str, Any]) -> Split | None:
    """The split at the batch with most tokens per second; None if no batch fits within `tpot`."""
    device_batches = np.unique(np.rint(_BATCH_RATIO ** np.arange(np.log(_MAX_DEVICE_BATCH) / np.log(_BATCH_RATIO) + 1)))
    for _ in range(2):
        result = afd(batch=[int(n) for n in layout.dp * device_batches], attention_layout=layout, **question)
        within_target = result.fits & (result.likely.step_s <= tpot)
        if not within_target.any():
            return None
        place = int(np.argmax(np.where(within_target, result.tokens_per_s, 0)))
        below, above = (
            float(device_batches[max(place - 1, 0)]),
            float(device_batches[min(place + 1, len(device_batches) - 1)]),
        )
        device_batches = np.unique(np.append(np.rint(np.linspace(below, above, _FINE_BATCHES)), device_batches[place]))
    return Split(result=result, place=place)
