"""`llmviewer fit`: the models that run on a device."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import click

from ..errors import InputError
from ..options import MachineOptions
from . import inputs
from . import options as shared
from .progress import with_progress_bar


def _tokens(_: click.Context, parameter: click.Parameter, value: str) -> int:
    """Parses a number of tokens; 32k are 32 x 1024."""
    match = re.fullmatch(r"(\d{1,12})(k?)", value.strip().lower())
    if not match:
        raise InputError(f"--{parameter.name} must be a whole number of tokens, such as 8192 or 32k; got {value!r}")
    return int(match[1]) * (1024 if match[2] else 1)


@click.command()
@click.argument("hardware", required=False)
@click.option(
    "--model",
    "models",
    metavar="NAME",
    multiple=True,
    help="Only models whose names begin so, such as qwen3. May be repeated.",
)
@click.option(
    "--context",
    metavar="TOKENS",
    default="8k",
    show_default=True,
    callback=_tokens,
    help="Prompt and output tokens of a sequence that must fit, such as 8192 or 32k.",
)
@click.option(
    "--tokens-per-s",
    type=shared.NUMBER,
    default=0,
    metavar="N",
    help="Least decode speed of one sequence; precisions get narrower to reach it.",
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Evaluate every model, which takes some ten seconds; else the 30 largest that run.",
)
@inputs.declared_options(MachineOptions)
@shared.report_options
def fit(
    *, options: MachineOptions, every: bool, form: str | None, output: Path | None, **question: Any
) -> None:  # fmt: skip
    """List the models that run on HARDWARE, or on this machine.

    Each shipped model is listed in the widest precision that fits, with its expected speed, the bound, and the memory
    and context that are left; the largest come first. HARDWARE is a name of `llmviewer hardware` or a YAML file; if not
    given, the GPU of this machine. Engine and precisions are those that users of such a device run: llama.cpp with GGUF
    files, MLX on Apple's chips, vLLM on GPUs with stacked memory.
    """
    shared.check_output(form, output)
    from ..comparing.machine_fit import MAX_SHOWN
    from ..comparing.machine_fit import fit as run
    from ..reports.machine_fit import REPORT

    question["limit"] = None if every else MAX_SHOWN
    shared.emit_report(REPORT, with_progress_bar("models", functools.partial(run, **question, **options)), form, output)
