"""`llmviewer split`: a model between a device and its host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..options import SplitArguments
from . import inputs
from . import options as shared


@click.command()
@click.argument("model")
@click.argument("hardware")
@shared.choice(
    "--part",
    choices=("experts", "layers", "attention"),
    help_text="What the host computes of its layers. Default: experts if the model has some and the "
    "host is a CPU, else whole layers.",
)
@inputs.declared_options(SplitArguments)
@shared.report_options
def split(*, options: SplitArguments, part: str | None, form: str | None, output: Path | None, **question: Any) -> None:
    """Split MODEL between HARDWARE and a CPU or second GPU.

    Speed, memory of both sides and bottleneck by the number of layers whose experts, attention or all of which --host
    computes beside its own memory, as llama.cpp's --n-cpu-moe, --n-gpu-layers and --tensor-split do.
    """
    shared.check_output(form, output)
    from ..comparing.host_split import split as run
    from ..reports.host_split import REPORT

    shared.emit_report(REPORT, run(part=part or "", **question, **options), form, output)
