"""`llmviewer afd`: attention and experts on separate devices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from ..errors import InputError
from ..options import ExpertOptions
from . import inputs
from . import options as shared

_DEFAULTS: Final[Mapping[str, Any]] = {"attention_layout": "dp=8", "expert_devices": 8, "batch": "64..4096*4"}
_MAX_BATCHES: Final = 1000  # each batch is an analysis of its own


@click.command()
@click.argument("model")
@click.argument("attention_hardware")
@click.argument("expert_hardware")
@click.option(
    "--attention-layout",
    metavar="DEGREES",
    help=f"Degrees of tp and dp of the attention devices. [default: {_DEFAULTS['attention_layout']}]",
)
@shared.number("--expert-devices", f"Devices with the experts. [default: {_DEFAULTS['expert_devices']}]")
@click.option("--batch", metavar="NUMBERS", help=f"Sequences on all attention devices. [default: {_DEFAULTS['batch']}]")
@shared.number("--devices", "Number of devices of both sides together; finds their best splits and batches.")
@shared.latency_target("--tpot", "With --devices: longest TPOT (expected; the bound if unknown).")
@shared.number("--kv-len", "Context length of each sequence.", default=4096)
@shared.number("--micro-batches", "Micro-batches of a batch; 0: the fastest number from 1 to 8.", default=0)
@shared.choice(
    "--link",
    choices=("scale-out", "scale-up"),
    help_text="Links between both sides: between nodes, or within one scale-up domain.",
    default="scale-out",
)
@inputs.declared_options(ExpertOptions)
@shared.depreciation
@shared.report_options
def afd(
    *,
    devices: int | None,
    tpot: float | None,
    options: ExpertOptions,
    form: str | None,
    output: Path | None,
    **question: Any,
) -> None:
    """Decode with attention and experts on separate devices.

    Attention-FFN disaggregation (AFD): in every layer tokens are sent from ATTENTION_HARDWARE to EXPERT_HARDWARE and
    back, while other micro-batches keep both sides busy.
    """
    from ..analyzing.afd import afd as run
    from ..analyzing.afd_splits import afd_splits
    from ..reports.afd import REPORT
    from ..reports.afd_splits import REPORT as SPLITS
    from ..sweeping.axes import parse_numbers

    shared.check_output(form, output)
    sides = {name: question.pop(name) for name in _DEFAULTS}
    if devices is None:
        if tpot is not None:
            raise InputError("--tpot is for --devices, which finds the best split")
        split = {name: default if sides[name] is None else sides[name] for name, default in _DEFAULTS.items()}
        batch = parse_numbers(split["batch"], where=f"--batch {split['batch']}", max_values=_MAX_BATCHES)
        shared.emit_report(REPORT, run(**question, **split | {"batch": batch}, **options), form, output)
        return
    if extra := [name for name, value in sides.items() if value is not None]:
        raise InputError(f"--{extra[0].replace('_', '-')} and --devices exclude each other; leave one out")
    shared.emit_report(SPLITS, afd_splits(devices=devices, tpot=tpot, **question, **options), form, output)
