"""`llmviewer afd`: experts on devices of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from . import options as shared
from . import questions


@click.command()
@click.argument("model")
@click.argument("attention_hardware")
@click.argument("expert_hardware")
@click.option(
    "--attention-layout",
    metavar="DEGREES",
    default="dp=8",
    show_default=True,
    help="Degrees of tp and dp of the devices that have all but the experts.",
)
@click.option(
    "--expert-devices", type=int, default=8, show_default=True, help="Devices that experts are divided among."
)
@click.option(
    "--batch", metavar="NUMBERS", default="64..4096*4", show_default=True, help="Sequences of all attention devices."
)
@click.option("--kv-len", type=int, default=4096, show_default=True, help="Tokens that a sequence attends to.")
@click.option(
    "--micro-batches", type=int, default=0, help="That a batch is cut into; if 0, of 1 to 8 those that are fastest."
)
@click.option(
    "--link",
    metavar="scale-out|scale-up",
    default="scale-out",
    show_default=True,
    help="Links between both sides: of nodes, or within a domain of both.",
)
@click.option(
    "--quant",
    metavar="SCHEME",
    callback=shared.precision,
    help="As in analyze; `published` if not given.",
)
@questions.expert_skew
@shared.compared
def afd(*, batch: str, form: str | None, output: Path | None, **question: Any) -> None:
    """Attention-FFN disaggregation: decode steps of MODEL with attention on one kind of device, and experts on another.

    In every layer tokens go from ATTENTION_HARDWARE to the devices of their experts, EXPERT_HARDWARE, and back, while
    other micro-batches are at work on both sides.
    """
    from ..analyzing.afd import afd as run
    from ..reports.afd import REPORT
    from ..sweeping.axes import parse_numbers

    shared.check_output(form, output)
    found = run(batch=parse_numbers(batch, where=f"--batch {batch}"), **question)
    shared.emit_report(REPORT, found, form, output)


COMMANDS: Final = (afd,)
