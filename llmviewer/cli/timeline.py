"""`llmviewer timeline`: what a profiler recorded, beside the bound and what is expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..errors import InputError
from ..options import SettingOptions
from ..units import parse
from . import inputs
from . import options as shared


def _size(_: click.Context, __: click.Parameter, text: str) -> int:
    """Bytes of a size such as "4GB"."""
    try:
        return int(parse(text, "B"))
    except ValueError as error:
        raise InputError(f"--max-bytes {error}") from None


@click.command()
@click.argument("file", type=shared.PATH)
@click.argument("model")
@click.argument("hardware")
@shared.number(
    "--batch", "Sequences at a time, when it was recorded; if not given, as the engine named the passes.", default=1
)
@shared.number("--prompt", "Tokens of each prompt; if not given, as the engine named the passes.", default=1024)
@shared.number(
    "--kv-len",
    "Tokens that decode steps attend to, on average; if not given, as the engine named the passes, else --prompt + 1.",
)
@shared.choice(
    "--phase",
    of=("decode", "prefill"),
    told="Where passes of both kinds were recorded: decode, those of which there are most; prefill, the longest.",
    default="decode",
)
@shared.number("--passes", "Passes of the model in the file; if not given, counted by its layers.")
@shared.number("--stage", "Of a pipeline (--pp), that whose device was recorded; the first is 1.")
@click.option(
    "--max-bytes",
    metavar="SIZE",
    default="1GiB",
    show_default=True,
    callback=_size,
    help="Largest FILE that is read, unpacked: a small one can unpack to more than memory holds.",
)
@inputs.takes(SettingOptions)
@shared.reported
def timeline(
    file: Path,
    *,
    options: SettingOptions,
    phase: str,
    passes: int | None,
    stage: int | None,
    max_bytes: int,
    form: str | None,
    output: Path | None,
    **asked: Any,
) -> None:
    """Compare a profiler trace of MODEL with its bound.

    FILE is a trace of torch.profiler (.json or .json.gz; vLLM and SGLang write such), of one rank where there are
    several, and of a CPU too; what `nsys export --type sqlite` wrote, or `nsys stats --format csv --report
    cuda_gpu_trace` (or cuda_gpu_kern_sum) printed; kernel_trace.csv or kernel_stats.csv of rocprofv3; or the profile
    of vLLM's layers (.json).
    """
    from ..analyzing.analysis import analyze
    from ..reports.timeline import REPORT
    from ..timelines.against import compared
    from ..timelines.passes import named_request
    from ..timelines.reading import read_timeline

    shared.check_output(form, output)
    if not file.exists():
        raise InputError(f"{file}: no such file; the trace comes first: llmviewer timeline FILE MODEL HARDWARE")
    recorded = read_timeline(file, phase, most=max_bytes)
    context = click.get_current_context()
    named = {
        name: value
        for name, value in named_request(recorded, phase).items()
        if context.get_parameter_source(name) is ParameterSource.DEFAULT
    }
    analysis = analyze(**{**asked, **named}, **options)
    found = compared(recorded, analysis, file=str(file), phase=phase, passes=passes, stage=stage)
    shared.emit_report(REPORT, found, form, output)
