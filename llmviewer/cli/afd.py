"""`llmviewer afd`: attention and experts on separate devices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from ..errors import InputError
from ..options import ExpertArguments, ExpertSharedOptions, ExpertSplitArguments, only
from . import inputs
from . import options as shared

_SIDES: Final[Mapping[str, Any]] = {"attention_layout": "dp=8", "expert_devices": 8}  # where --devices is not given
_BATCHES: Final = "64..4096*4"


@click.command()
@click.argument("model")
@click.argument("attention_hardware")
@click.argument("expert_hardware")
@click.option(
    "--attention-layout",
    metavar="DEGREES",
    help=f"Degrees of tp and dp of the attention devices. [default: {_SIDES['attention_layout']}]",
)
@shared.number("--expert-devices", f"Devices with the experts. [default: {_SIDES['expert_devices']}]")
@shared.number("--devices", "Number of devices of both sides together; finds their best splits and batches.")
@inputs.option("tpot", ExpertSplitArguments.__annotations__["tpot"])
@inputs.declared_options(
    ExpertArguments,
    batch={"default": None, "show_default": False, "more": f"Several: 64,256. [default: {_BATCHES}]"},
)
@shared.report_options
def afd(
    *,
    devices: int | None,
    tpot: float | None,
    options: ExpertArguments,
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
    sides = {name: question.pop(name) for name in _SIDES} | {"batch": options.get("batch")}
    shared_options = only(options, ExpertSharedOptions)
    if devices is None:
        if tpot is not None:
            raise InputError("--tpot is for --devices, which finds the best split")
        defaults = {**_SIDES, "batch": parse_numbers(_BATCHES, where="--batch")}
        split = {name: defaults[name] if value is None else value for name, value in sides.items()}
        shared.emit_report(REPORT, run(**question, **shared_options, **split), form, output)
        return
    if extra := [name for name, value in sides.items() if value is not None]:
        raise InputError(f"--{extra[0].replace('_', '-')} and --devices exclude each other; leave one out")
    shared.emit_report(SPLITS, afd_splits(devices=devices, tpot=tpot, **question, **shared_options), form, output)
