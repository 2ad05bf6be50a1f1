"""`llmviewer afd`: experts on devices of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from . import inputs
from . import options as shared


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
@shared.number("--expert-devices", "Devices that have the experts.", default=8)
@click.option(
    "--batch", metavar="NUMBERS", default="64..4096*4", show_default=True, help="Sequences of all attention devices."
)
@shared.number("--kv-len", "Tokens that a sequence attends to.", default=4096)
@shared.number("--micro-batches", "That a batch is cut into; if 0, of 1 to 8 those that are fastest.", default=0)
@shared.choice(
    "--link",
    of=("scale-out", "scale-up"),
    told="Links between both sides: of nodes, or within a domain of both.",
    default="scale-out",
)
@click.option(
    "--quant",
    metavar="SCHEME",
    callback=shared.precision,
    help="As in analyze; `published` if not given.",
)
@inputs.expert_skew
@inputs.redundant_experts
@shared.compared
def afd(*, batch: str, form: str | None, output: Path | None, **question: Any) -> None:
    """Decode with attention and experts on separate devices.

    Attention-FFN disaggregation (AFD): in every layer tokens go from ATTENTION_HARDWARE to EXPERT_HARDWARE, which has
    the experts, and back, while other micro-batches are at work on both sides.
    """
    from ..analyzing.afd import afd as run
    from ..reports.afd import REPORT
    from ..sweeping.axes import parse_numbers

    shared.check_output(form, output)
    found = run(batch=parse_numbers(batch, where=f"--batch {batch}"), **question)
    shared.emit_report(REPORT, found, form, output)


COMMANDS: Final = (afd,)
