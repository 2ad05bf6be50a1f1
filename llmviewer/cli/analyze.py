"""`llmviewer analyze`: bounds and expected times of a model on a device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from ..options import AnalysisArguments, DisaggregatedArguments, only
from . import inputs
from . import options as shared

if TYPE_CHECKING:
    from ..analyzing.analysis import Analysis
    from ..parallel.layout import Layout


def _measured(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, float]:
    from ..analyzing.measured import parse

    return parse(",".join(texts))


@click.command()
@click.argument("model")
@click.argument("hardware")
@inputs.declared_options(AnalysisArguments)
@shared.report_format(shared.FORMATS)
@click.option(
    "--per-call/--all-calls",
    default=None,
    help="Show amounts and times of one launch of an operator, or summed over its launches (text, markdown).",
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="List every operator; by default, a long table on the screen sums those under 1% of the time.",
)
@click.option(
    "--measured",
    metavar="QUANTITY=VALUE",
    multiple=True,
    callback=_measured,
    help="A measured ttft, tpot, latency or tokens_per_s (prefill included), such as tpot=25ms, to compare with bound "
    "and expected time. May be repeated.",
)
@click.option("--sources", is_flag=True, help="Cite the sources of an engine's times (text).")
@inputs.disaggregation
@inputs.scenario
@shared.emit_option
@shared.output(subject="the report")
def analyze(
    model: str,
    hardware: str,
    *,
    options: AnalysisArguments,
    form: str | None,
    per_call: bool | None,
    every: bool,
    sources: bool,
    output: Path | None,
    emit: str | None,
    sides: dict[str, Any],
    **question: Any,
) -> None:
    """Analyze MODEL on HARDWARE, operator by operator.

    Shows bounds and expected times of prefill and decode, memory, and improvements. MODEL is a name of `llmviewer
    models`, a config.json or a folder with one, org/name on the Hugging Face hub, a GGUF or safetensors file, a YAML
    file, or package.module:callable; HARDWARE is a name of `llmviewer hardware` or a YAML file.
    """
    from ..analyzing.analysis import analyze as run

    if emit is not None and (sides or form):
        raise InputError("--emit writes the command of one server; leave out --format, --prefill-... and --decode-...")
    output_form = shared.form_of(form, None if emit else output)
    if per_call is not None and output_form not in ("text", "markdown"):
        raise InputError(
            "--per-call and --all-calls apply to text and markdown; leave them out with "
            f"{output_form}, which has the launches of each operator"
        )
    if every and output_form != "text":
        raise InputError(f"--all applies to text; leave it out with {output_form}, which has every operator")
    if question["measured"] and output_form == "csv":
        raise InputError("--measured does not apply to csv, which has a row per operator; leave one of them out")
    brief = output_form == "text" and not every and output is None
    report_options: dict[str, Any] = {
        "per_call": per_call, "brief": brief, "sources": sources or output_form == "markdown",
    }  # fmt: skip
    if sides:
        from ..analyzing.disaggregation import disaggregate
        from ..setting import layout_of

        for name, value in (
            ("with", options["techniques"]), ("tpot", options["tpot"]), ("measured", question.pop("measured")),
        ):  # fmt: skip
            if value:
                raise InputError(
                    f"--{name} is not supported with --prefill-... and --decode-...; leave one of them out"
                )
        layout = layout_of(options)
        _check_used(sides, hardware, layout)
        both_sides: dict[str, Any] = {"prefill_hardware": hardware, "decode_hardware": hardware}
        both_sides |= {"prefill_layout": layout, "decode_layout": layout}
        from ..reports import disaggregated

        result = disaggregate(model, **(both_sides | sides), **only(options, DisaggregatedArguments), **question)
        shared.emit_report(disaggregated.report(**report_options), result, output_form, output)
        return
    analysis = run(model, hardware, **options, **question)
    if emit is not None:
        _emit(analysis, emit, output)
        return
    if options["gen"] is not None and not analysis.model.generates:
        raise InputError(f"gen must be left out: {analysis.model.name} does not generate")
    from ..reports.analysis import report

    shared.emit_report(report(**report_options), analysis, output_form, output)


def _emit(analysis: Analysis, emit: str, output: Path | None) -> None:
    """Writes the launch command of the analyzed setting."""
    request = analysis.request
    if not analysis.memory.fits:
        raise InputError(f"{analysis.model.name} does not fit: no command is written (analyze without --emit says why)")
    tokens = request.prompt + (request.gen or 0)
    shared.emit_command(analysis.setting, emit, output, sequences=request.batch, tokens=tokens)


def _check_used(sides: Mapping[str, Any], hardware: str, layout: Layout) -> None:
    """Raises InputError if HARDWARE or the layout has no effect, as prefill and decode have their own."""
    from ..devices.files import load_hardware
    from ..parallel.layout import ONE_DEVICE

    side_values = {field: [sides[f"{side}_{field}"] for side in inputs.SIDES if f"{side}_{field}" in sides]
           for field in ("hardware", "layout")}  # fmt: skip
    named = [load_hardware(name).name for name in side_values["hardware"]]
    if len(named) > 1 and load_hardware(hardware).name not in named:
        raise InputError(
            f"HARDWARE {hardware} has no effect beside --prefill-hardware and --decode-hardware; name one of them"
        )
    if len(side_values["layout"]) > 1 and layout != ONE_DEVICE:
        raise InputError(f"layout {layout} has no effect beside --prefill-layout and --decode-layout; leave one out")
