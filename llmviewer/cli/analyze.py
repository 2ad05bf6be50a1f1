"""`llmviewer analyze`: the roofline of a model on a device."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from ..options import DisaggregatedOptions, SettingOptions, only
from . import inputs
from . import options as shared

if TYPE_CHECKING:
    from ..parallel.layout import Layout


def _measured(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, float]:
    from ..analyzing.measured import parse

    return parse(",".join(texts))


@click.command()
@click.argument("model")
@click.argument("hardware")
@click.option(
    "--batch",
    metavar="N|max",
    type=click.UNPROCESSED,
    callback=shared.or_max(int, "a whole number, or max for the largest that fits"),
    default=1,
    show_default=True,
    help="Sequences at a time; max: as many as fit in memory.",
)
@shared.latency_target(
    "--tpot", "With --batch max: the longest time per output token, as expected where that is known."
)
@shared.number("--prompt", "Tokens of each prompt.", default=1024)
@shared.number(
    "--gen", "Tokens generated of each sequence; 128, or those of one inference of a model for robots, if not given."
)
@shared.number("--kv-len", "Tokens that the decode step shown attends to; if not given, those of the first step.")
@shared.number("--images", "Pictures in each prompt, or audio clips of 30 s.", default=0)
@shared.report_format(shared.FORMATS)
@click.option(
    "--per-call/--all-calls",
    default=None,
    help="Show OPs, bytes and times of one launch of an operator, or of all of them together (text, markdown).",
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="On the screen, list every operator. If not given, a long table has those under 1% of the time in one line.",
)
@click.option(
    "--measured",
    metavar="QUANTITY=VALUE",
    multiple=True,
    callback=_measured,
    help="What you measured, such as tpot=25ms: tells how good that is, and what to try. Of ttft, tpot, latency and "
    "tokens_per_s (of the generation, prefill included). May be repeated.",
)
@click.option("--sources", is_flag=True, help="Name the measurements behind the times of an engine (text).")
@inputs.declared_options(SettingOptions)
@inputs.disaggregation
@inputs.scenario
@shared.output(subject="the report")
def analyze(
    model: str,
    hardware: str,
    *,
    options: SettingOptions,
    form: str | None,
    per_call: bool | None,
    every: bool,
    sources: bool,
    output: Path | None,
    sides: dict[str, Any],
    **question: Any,
) -> None:
    """Analyze MODEL on HARDWARE, operator by operator.

    Gives bounds and expected times of prefill and decode, memory, and what would help. MODEL is a name of `llmviewer
    models`, a config.json or a folder with one, org/name on the Hugging Face hub, a GGUF or safetensors file, a YAML
    file, or package.module:callable; HARDWARE is a name of `llmviewer hardware` or a YAML file.
    """
    from ..analyzing.analysis import analyze as run
    from ..reports.columns import WIDTH

    output_form = shared.form_of(form, output)
    if per_call is not None and output_form not in ("text", "markdown"):
        raise InputError(
            "--per-call and --all-calls apply to text and markdown; leave them out with "
            f"{output_form}, which has the launches of each operator"
        )
    if every and output_form != "text":
        raise InputError(f"--all is of text; leave it out with {output_form}, which has every operator")
    if question["measured"] and output_form == "csv":
        raise InputError("--measured is not told in csv, which has a row per operator; leave one of them out")
    brief = output_form == "text" and not every and output is None
    table_columns = shared.terminal_columns() if output_form == "text" and output is None else 0
    report_options: dict[str, Any] = {
        "per_call": per_call, "brief": brief, "sources": sources or output_form == "markdown",
        "room": max(table_columns, WIDTH) if table_columns else sys.maxsize,
    }  # fmt: skip
    if sides:
        from ..analyzing.disaggregation import disaggregate
        from ..setting import layout_of

        for name, value in (
            ("with", options["techniques"]), ("tpot", question.pop("tpot")), ("measured", question.pop("measured")),
        ):  # fmt: skip
            if value:
                raise InputError(f"--{name} is for one kind of device; leave out --prefill-... and --decode-...")
        layout = layout_of(options)
        _check_used(sides, hardware, layout)
        both_sides: dict[str, Any] = {"prefill_hardware": hardware, "decode_hardware": hardware}
        both_sides |= {"prefill_layout": layout, "decode_layout": layout}
        if question["gen"] is None:
            del question["gen"]
        from ..reports import disaggregated

        result = disaggregate(model, **(both_sides | sides), **only(options, DisaggregatedOptions), **question)
        shared.emit_report(disaggregated.report(**report_options), result, output_form, output)
        return
    analysis = run(model, hardware, **options, **question)
    if question["gen"] is not None and not analysis.model.generates:
        raise InputError(f"gen is of decode steps, and {analysis.model.name} does not generate; leave it out")
    from ..reports.analysis import report

    shared.emit_report(report(**report_options), analysis, output_form, output)


def _check_used(sides: Mapping[str, Any], hardware: str, layout: Layout) -> None:
    """Raises InputError if the device or the layout of both sides applies to neither, as each has its own."""
    from ..devices.files import load_hardware
    from ..parallel.layout import ALONE

    side_values = {field: [sides[f"{side}_{field}"] for side in inputs.SIDES if f"{side}_{field}" in sides]
           for field in ("hardware", "layout")}  # fmt: skip
    named = [load_hardware(name).name for name in side_values["hardware"]]
    if len(named) > 1 and load_hardware(hardware).name not in named:
        raise InputError(
            f"HARDWARE {hardware} is of no use beside --prefill-hardware and --decode-hardware; name one of them"
        )
    if len(side_values["layout"]) > 1 and layout != ALONE:
        raise InputError(f"layout {layout} is of no use beside --prefill-layout and --decode-layout; leave one out")
