"""`llmviewer afd`: experts on devices of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from ..errors import InputError
from ..options import ExpertOptions
from . import inputs
from . import options as shared

_USUAL: Final[Mapping[str, Any]] = {"attention_layout": "dp=8", "expert_devices": 8, "batch": "64..4096*4"}
_MOST: Final = 1000  # batches, each of which is an analysis of its own


@click.command()
@click.argument("model")
@click.argument("attention_hardware")
@click.argument("expert_hardware")
@click.option(
    "--attention-layout",
    metavar="DEGREES",
    help=f"Degrees of tp and dp of devices that have all but the experts; {_USUAL['attention_layout']} if not given.",
)
@shared.number("--expert-devices", f"Devices that have the experts; {_USUAL['expert_devices']} if not given.")
@click.option("--batch", metavar="NUMBERS", help=f"Sequences of all attention devices; {_USUAL['batch']} if not given.")
@shared.number("--devices", "Of both sides together, in place of these: their best splits and batches.")
@shared.latency_target("--tpot", "With --devices: the longest time per output token, as expected where that is known.")
@shared.number("--kv-len", "Tokens that a sequence attends to.", default=4096)
@shared.number("--micro-batches", "That a batch is cut into; if 0, of 1 to 8 those that are fastest.", default=0)
@shared.choice(
    "--link",
    choices=("scale-out", "scale-up"),
    help_text="Links between both sides: of nodes, or within a domain of both.",
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

    Attention-FFN disaggregation (AFD): in every layer tokens go from ATTENTION_HARDWARE to EXPERT_HARDWARE, which has
    the experts, and back, while other micro-batches are at work on both sides.
    """
    from ..analyzing.afd import afd as run
    from ..analyzing.afd_splits import afd_splits
    from ..reports.afd import REPORT
    from ..reports.afd_splits import REPORT as SPLITS
    from ..sweeping.axes import parse_numbers

    shared.check_output(form, output)
    sides = {name: question.pop(name) for name in _USUAL}
    if devices is None:
        if tpot is not None:
            raise InputError("--tpot is for --devices, which looks for the best split")
        own = {name: usual if sides[name] is None else sides[name] for name, usual in _USUAL.items()}
        batch = parse_numbers(own["batch"], where=f"--batch {own['batch']}", max_values=_MOST)
        shared.emit_report(REPORT, run(**question, **own | {"batch": batch}, **options), form, output)
        return
    if given := [name for name, value in sides.items() if value is not None]:
        raise InputError(f"--{given[0].replace('_', '-')} is what --devices looks for; leave one out")
    shared.emit_report(SPLITS, afd_splits(devices=devices, tpot=tpot, **question, **options), form, output)
