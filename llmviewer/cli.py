"""The command line. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
from click.core import ParameterSource

from . import __version__
from . import cli_options as shared
from .cli_kernel import COMMANDS as KERNEL
from .cli_measure import COMMANDS as MEASURING
from .cli_profiles import COMMANDS as PROFILES
from .cli_serving import COMMANDS as PLANNING
from .cli_techniques import COMMANDS as TECHNIQUES
from .cli_techniques import techniques_alone, with_techniques
from .cli_validation import COMMANDS
from .cli_web import COMMANDS as SERVING
from .errors import InputError
from .units import counted

if TYPE_CHECKING:
    from .analysis import Analysis
    from .disaggregation import Disaggregated
    from .hardware import Hardware

FIGURES: Final = ("roofline", "dtypes", "memory", "decode-time", "prefill-time")
_SIDES: Final = {"prefill": "read prompts", "decode": "take decode steps"}
_DEGREES: Final = {
    "tp": "tensor: weights, heads and experts are cut",
    "pp": "pipeline: layers are shared out",
    "ep": "expert: experts are shared out over tp x dp",
    "dp": "data: sequences are shared out",
    "cp": "context: tokens of prompt and cache are shared out",
}
_LAYOUTS: Final = 64  # degrees of one kind that are compared at once
_QUIET_S: Final = 10  # between two lines on progress where there is no terminal
_DRAWN: Final = {".txt": "text", ".json": "json", ".dot": "dot", ".mmd": "mermaid", ".mermaid": "mermaid"}
_SUMMARIES: Final = {".txt": "text", ".csv": "csv", ".json": "json"}
_COMPARED: Final = 1000  # batches, each of which is an analysis of its own
_LONG: Final = 200_000  # points of a sweep that take long enough for a progress bar

_F = TypeVar("_F", bound=Callable[..., object])
_Values = TypeVar("_Values")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0, or 2 with one line on stderr where the input is at fault."""
    try:
        cli.main(args=arguments, prog_name="llmviewer", standalone_mode=False)
        sys.stdout.flush()
    except (InputError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else _in_options(error, arguments)
        click.echo(f"llmviewer: {' '.join(message.split())}", err=True)
        return 2
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.filename is not None:  # of a file, which whoever opened it should have told
            raise
        click.echo(f"llmviewer: cannot write to standard output: {error.strerror}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left of it is flushed at exit
        return 2
    return 0


def _in_options(error: InputError, arguments: Sequence[str] | None) -> str:
    """What is wrong, by the names that options have."""
    name, *_ = (*(sys.argv[1:] if arguments is None else arguments), "")
    return shared.in_options(str(error), cli.commands[name]) if name in cli.commands else str(error)


@click.group(
    commands=(*COMMANDS, *KERNEL, *PROFILES, *PLANNING, *TECHNIQUES, *MEASURING, *SERVING),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: llmviewer analyze llama-2-7b rtx-a6000",
)
@click.version_option(__version__, message="llmviewer %(version)s")
def cli() -> None:
    """Where the time of an LLM goes on a machine, what bounds it, and what would change it, by how much."""


def _setting(command: _F, *, required: bool = True) -> _F:
    """The options that every question about a model on a device has."""
    options = (
        click.argument("model", required=required),
        click.argument("hardware", required=required),
        click.option(
            "--quant",
            metavar="SCHEME",
            callback=shared.precision,
            help="Bits or formats of weights, activations and KV cache: W4A16g128, W8A8KV8, fp8, Wnf4A16; for parts of "
            "the model: W4A16g128,down_proj=W8A16,layers.0-3=W16A16. `published`, as the model is, if not given.",
        ),
        click.option(
            "--attention",
            metavar="eager|flash",
            help="Three launches with the scores in memory, or one. Flash if not given; eager in survey accounting.",
        ),
        click.option(
            "--accounting",
            metavar="faithful|survey",
            default="faithful",
            show_default=True,
            help='What kernels have to do, or the conventions of the paper "LLM Inference Unveiled".',
        ),
        click.option(
            "--mla",
            metavar="auto|naive|absorbed",
            default="auto",
            show_default=True,
            help="Latent attention (DeepSeek): expand the cache, or bring the queries to it. Auto: naive in the "
            "prefill, absorbed in decode.",
        ),
        shared.hardware_set,
        shared.hardware_path,
    )
    for option in reversed(options):
        command = option(command)
    return command


def _layout(command: _F, *, several: bool = False) -> _F:
    """Degrees of parallelism, which the command gets as one Layout, or as a list of all combinations of `several`."""

    @functools.wraps(command)
    def with_layout(*arguments: Any, **options: Any) -> object:
        from .layout import Layout, layouts
        from .operators.collectives import Algorithm

        given = {name: options.pop(name) for name in (*_DEGREES, "micro_batches")}
        algorithm, hierarchical = options.pop("collective"), options.pop("hierarchical_all_to_all")
        overlap = options.pop("overlap")
        if algorithm not in list(Algorithm):
            raise InputError(f"--collective must be one of {', '.join(Algorithm)}; got {algorithm!r}")
        parts = given.pop("micro_batches")
        ways = {
            "micro_batches": parts, "algorithm": Algorithm(algorithm), "hierarchical": hierarchical, "overlap": overlap
        }  # fmt: skip
        if not several:
            return command(*arguments, layout=Layout(**given, **ways), **options)
        from .grid import parse_numbers

        numbers = [parse_numbers(given[name], where=f"--{name} {given[name]}", most=_LAYOUTS) for name in _DEGREES]
        each = (dict(zip(_DEGREES, combined, strict=True)) for combined in itertools.product(*numbers))
        return command(*arguments, layout=layouts(each, **ways), **options)

    options = [
        *(
            click.option(f"--{name}", metavar="NUMBERS", default="1", help=f"Parallelism, {text}; several: 1,2,4.")
            if several
            else click.option(f"--{name}", type=int, default=1, help=f"Parallelism, {text}.")
            for name, text in _DEGREES.items()
        ),
        click.option("--micro-batches", type=int, default=0, help="Parts of a batch in the pipeline; as stages if 0."),
        click.option(
            "--collective",
            metavar="auto|ring|tree|one-shot|two-shot",
            default="auto",
            help="How sums travel between devices; auto is what none of them beats.",
        ),
        click.option("--hierarchical-all-to-all", is_flag=True, help="Tokens for other nodes pass a peer there."),
        click.option("--overlap", is_flag=True, help="Collectives travel while the launch before them still works."),
    ]
    result: Any = with_layout
    for option in reversed(options):
        result = option(result)
    return cast("_F", result)


def _offload(command: _F) -> _F:
    """What lies outside of device memory, which the command gets as one Offload."""

    @functools.wraps(command)
    def with_offload(*arguments: Any, offload: str | None, offload_sync: bool, **options: Any) -> object:
        from .transforms.offload import parse_offload

        waits = f"{offload or ''} sync" if offload_sync else offload or ""
        return command(*arguments, offload=parse_offload(waits), **options)

    options = (
        click.option(
            "--offload",
            metavar="PARTS",
            callback=shared.given,
            help="Parts of all weights and of the KV cache that lie in host memory, or @storage, and are fetched: "
            "weights=0.5,kv=0.2@storage.",
        ),
        click.option("--offload-sync", is_flag=True, help="What is fetched does not come while others are computed."),
    )
    result: Any = with_offload
    for option in reversed(options):
        result = option(result)
    return cast("_F", result)


def _two_kinds(command: _F) -> _F:
    """Devices and layouts of prefill and decode apart, which the command gets as `sides`, empty where none is given."""

    @functools.wraps(command)
    def with_sides(*arguments: Any, **options: Any) -> object:
        names = [f"{side}_{what}" for side in _SIDES for what in ("hardware", "layout")]
        given = {name: options.pop(name) for name in (*names, "kv_transfer")}
        sides = {name: value for name, value in given.items() if value is not None}
        if list(sides) == ["kv_transfer"]:
            raise InputError(
                "--kv-transfer is between two kinds of devices; give --prefill-hardware or --decode-hardware"
            )
        return command(*arguments, sides=sides, **options)

    options = [
        click.option(f"--{side}-{what}", metavar=metavar, help=f"{about} {does}.")
        for side, does in _SIDES.items()
        for what, metavar, about in (
            ("hardware", "HARDWARE", "Another kind of devices that"),
            ("layout", "DEGREES", "Such as 'tp=4 pp=2', of the devices that"),
        )
    ]
    options.append(
        click.option(
            "--kv-transfer",
            metavar="after|overlapped",
            help="The cache goes from devices that read prompts to others after the prefill, or layer by layer in it.",
        )
    )
    result: Any = with_sides
    for option in reversed(options):
        result = option(result)
    return cast("_F", result)


def _expert_skew(command: _F) -> _F:
    return click.option(
        "--expert-skew",
        metavar="S",
        type=float,
        default=0,
        show_default=True,
        help="How unevenly tokens choose experts: popularity falls with rank to the power of S. 0: all alike.",
    )(command)


def _mtp(command: _F) -> _F:
    return click.option(
        "--mtp", is_flag=True, help="Also run the layers that predict further tokens, where the model has some."
    )(command)


def _output(*, what: str) -> Callable[[_F], _F]:
    return click.option(
        "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help=f"Write {what} to a file."
    )


@cli.command()
@_setting
@_expert_skew
@_mtp
@_layout
@_offload
@click.option("--batch", type=int, default=1, show_default=True, help="Sequences at a time.")
@click.option("--prompt", type=int, default=1024, show_default=True, help="Tokens of each prompt.")
@click.option("--gen", type=int, default=128, show_default=True, help="Tokens generated of each sequence.")
@click.option("--kv-len", type=int, help="Tokens that the decode step shown attends to. The first step's if not given.")
@click.option(
    "--images", type=int, default=0, show_default=True, help="Pictures in each prompt, their tokens included."
)
@click.option(
    "--format", "form", type=click.Choice(shared.FORMATS), help="Text if not given, or as the file's name says."
)
@click.option("--per-call/--all-calls", default=None, help="OPs and bytes of one launch, or of all (text, markdown).")
@shared.library
@shared.profiles
@shared.engine
@_two_kinds
@with_techniques
@_output(what="the report")
def analyze(
    *,
    form: str | None,
    per_call: bool | None,
    output: Path | None,
    hardware_set: tuple[str, ...],
    sides: dict[str, Any],
    **question: Any,
) -> None:
    """The roofline of MODEL on HARDWARE: every operator of prefill and decode, memory, and the generation.

    MODEL is a name of `llmviewer models`, a config.json or a folder with one, org/name on the Hugging Face hub, a
    GGUF or safetensors file, a YAML file, or package.module:callable; HARDWARE is a name of `llmviewer hardware` or a
    YAML file.
    """
    from .analysis import analyze as run

    chosen = shared.form_of(form, output)
    if sides:
        from .disaggregation import disaggregate

        if question.pop("techniques"):
            raise InputError("--with is for one kind of device; leave out --prefill-... and --decode-...")
        hardware, layout = question.pop("hardware"), question.pop("layout")
        usual = {
            f"{side}_{what}": value for side in _SIDES for what, value in (("hardware", hardware), ("layout", layout))
        }
        found = disaggregate(hardware_set=hardware_set, **(usual | sides), **question)
        shared.emit(_rendered_both(found, chosen, per_call=per_call, to_file=output is not None), output)
        return
    analysis = run(hardware_set=hardware_set, **question)
    asked = click.get_current_context().get_parameter_source("gen") is ParameterSource.COMMANDLINE
    if asked and not analysis.model.generates:
        raise InputError(f"gen is of decode steps, and {analysis.model.name} does not generate; leave it out")
    shared.emit(_rendered(analysis, chosen, per_call=per_call, to_file=output is not None), output)


def _rendered_both(found: Disaggregated, form: str, *, per_call: bool | None, to_file: bool) -> str:
    from .reports import disaggregated

    if form == "json":
        return disaggregated.render_json(found)
    if form == "csv":
        return disaggregated.render_csv(found)
    if form == "markdown":
        return disaggregated.render_markdown(found, per_call=per_call)
    if form == "html":
        return disaggregated.render_html(found)
    colored = sys.stdout.isatty() and not to_file
    text = disaggregated.render(found, width=0 if to_file else _width(), per_call=per_call)
    return text if colored else click.unstyle(text)


def _rendered(analysis: Analysis, form: str, *, per_call: bool | None, to_file: bool) -> str:
    if form == "json":
        from .reports.data import render_json

        return render_json(analysis)
    if form == "csv":
        from .reports.data import render_csv

        return render_csv(analysis)
    if form == "markdown":
        from .reports.markdown import render as render_markdown

        return render_markdown(analysis, per_call=per_call)
    if form == "html":
        from .reports.html import render as render_html

        return render_html(analysis)
    from .reports.text import render

    colored = sys.stdout.isatty() and not to_file
    text = render(analysis, width=0 if to_file else _width(), per_call=per_call)
    return text if colored else click.unstyle(text)


def _width() -> int:
    """Columns of the terminal, or of what the environment says is in its place; 0 where there is neither."""
    return shutil.get_terminal_size()[0] if sys.stdout.isatty() or "COLUMNS" in os.environ else 0


@cli.command()
@click.argument("name", required=False, callback=shared.given)
@click.option("--graph", is_flag=True, help="The operators of NAME with their tensors and weights.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "json", "dot", "mermaid")),
    help="dot and mermaid draw the graph. Text if not given, or as the file's name says.",
)
@_output(what="the list")
def models(name: str | None, form: str | None, output: Path | None, *, graph: bool) -> None:
    """The models that ship, or the facts or the graph of one (a NAME, or the path of a config.json)."""
    import json

    from .analysis import describe_model
    from .model_files import load_model, model_names

    form = shared.form_of(form, output, _DRAWN)
    if graph or form in ("dot", "mermaid"):
        if not name:
            raise InputError("a graph is that of one model: give its name, such as `llmviewer models gpt2 --graph`")
        from .reports.graph import render

        shared.emit(render(load_model(name), form), output)
        return
    if form == "json":
        facts = describe_model(load_model(name)) if name else [describe_model(load_model(n)) for n in model_names()]
        shared.emit(json.dumps(facts, indent=2) + "\n", output)
        return
    from .reports.catalogue import model_card, model_list

    shared.emit(model_card(load_model(name)) if name else model_list([load_model(n) for n in model_names()]), output)


@cli.command()
@click.argument("name", required=False, callback=shared.given)
@click.option("--check", is_flag=True, help="Whether the numbers of NAME, or of every device, fit together.")
@click.option("--local", is_flag=True, help="Draft the YAML of the CPU and the GPUs of this machine.")
@shared.hardware_path
@click.option(
    "--format", "form", type=click.Choice(("text", "json", "yaml")), default="text", show_default=True,
    help="yaml: the file of NAME, to begin one of your own with (docs/hardware.md); its name is that of --output.",
)  # fmt: skip
@_output(what="the list")
def hardware(name: str | None, form: str, output: Path | None, *, check: bool, local: bool) -> None:
    """The devices that ship, or every number of one with its source (a NAME, or the path of a YAML file)."""
    import json

    from .analysis import hardware_facts
    from .hardware_files import hardware_names, hardware_yaml, load_hardware

    if form == "yaml":
        if name is None or check or local:
            raise InputError("--format yaml is of one device; give its NAME, and neither --check nor --local")
        shared.emit(hardware_yaml(name, output.stem if output else ""), output)
        return
    if local:
        from .local import draft

        shared.emit(draft(), output)
        return
    known = [load_hardware(n) for n in ((name,) if name else hardware_names())]
    if check:
        _check(known)
        return
    if form == "json":
        facts = [hardware_facts(device) for device in known]
        shared.emit(json.dumps(facts[0] if name else facts, indent=2) + "\n", output)
        return
    from .reports.catalogue import hardware_card, hardware_list

    shared.emit(hardware_card(known[0]) if name else hardware_list(known), output)


def _check(devices: Sequence[Hardware]) -> None:
    """A line for each violation, and one for a device without; at the end, if all is well, what was checked."""
    from .hardware_checks import CHECKS, clashes, violations
    from .hardware_files import hardware_aliases

    aliases, wrong = hardware_aliases(), 0
    for device in devices:
        found = (*violations(device), *clashes(device, aliases))
        wrong += len(found)
        counts = f"{counted(len(device.facts), 'fact')}, {counted(len(device.sources), 'source')}"
        click.echo("\n".join(f"{device.name}: {line}" for line in found) or f"{device.name}: ok: {counts}")
    if wrong:
        raise InputError(f"--check: {counted(wrong, 'violation')}")
    click.echo(click.wrap_text(f"Checked: {'; '.join((*CHECKS, 'names'))}.", 80))


@cli.command()
@functools.partial(_setting, required=False)
@_expert_skew
@_mtp
@_layout
@_offload
@click.option(
    "--over",
    metavar="AXIS=VALUES",
    multiple=True,
    help="batch=1..256, batch=1..256*2, prompt=128,512,2048, kv_len=128..4096+128, gen=..., images=0..4, "
    "quant=published,W4A16g128, attention=eager,flash; what-ifs on the device: memory.bandwidth=1x,2x,4x, "
    "matrix.bf16=1x,2x; in a folder also 'layout=tp=8,tp=4 pp=2'. May be repeated: all combinations.",
)
@click.option("--batch", type=int, default=1, show_default=True, help="Where it is not swept over.")
@click.option("--prompt", type=int, default=1024, show_default=True, help="Where it is not swept over.")
@click.option("--gen", type=int, help="Tokens generated; adds time per token and latency of the whole generation.")
@click.option("--kv-len", type=int, help="Context of the decode step; prompt + 1 if not given.")
@click.option("--images", type=int, help="Pictures in each prompt; none if not given.")
@with_techniques
@click.option("--expected", is_flag=True, help="Adds what to expect of real kernels, to rows; a summary ranks by it.")
@shared.library
@shared.profiles
@shared.engine
@click.option(
    "-o", "--output", metavar="FILE|DIR/", help="Write the points to a file (.csv or .parquet), or shards to a folder."
)
@click.option("--workers", type=click.IntRange(1), help="Processes that fill the folder.")
@click.option("--shard", metavar="I/N", help="Fill in only every N-th shard of the folder, from the I-th.")
@click.option(
    "--dask",
    metavar="ADDRESS",
    callback=shared.given,
    help="Fill the folder on a Dask cluster, such as tcp://HOST:8786.",
)
@click.option("--shard-points", type=click.IntRange(1), help="Points of a shard at most; a million if not given.")
@click.option("--summary", type=click.Path(path_type=Path), metavar="DIR", help="What the sweep in a folder found.")
@click.option("--by", metavar="AXES", default="model", show_default=True, help="What a summary keeps apart.")
@click.option(
    "--format",
    "form",
    type=click.Choice(tuple(_SUMMARIES.values())),
    help="Of a summary. Text if not given, or as the file's name says.",
)
def sweep(
    *,
    model: str | None,
    hardware: str | None,
    over: tuple[str, ...],
    output: str | None,
    summary: Path | None,
    by: str,
    form: str | None,
    **question: Any,
) -> None:
    """Many settings at once: a row for every combination of the values given with --over.

    With -o DIR/, MODEL and HARDWARE may be several, as in llama-3-8b,qwen3* or all, and the points are written as
    shards, which the same command completes wherever it was stopped; --summary DIR then says what is best.
    """
    if summary:
        _summarize(summary, model, by, form, Path(output) if output else None, expected=question["expected"])
        return
    if form:
        raise InputError("--format is of a --summary; points are written as the name after -o ends, or as CSV")
    if model is None or hardware is None:
        raise click.MissingParameter(param_hint=f"'{'MODEL' if model is None else 'HARDWARE'}'", param_type="argument")
    running = {name: question.pop(name) for name in ("workers", "shard", "dask", "shard_points")}
    if any(running.values()) or (output and (output.endswith(("/", os.sep)) or Path(output).is_dir())):
        _fill(model, hardware, over, output, question, **running)
        return
    if not over:
        raise click.MissingParameter(param_hint="'--over'", param_type="option")
    for text in (model, hardware):
        if (text == "all" or set(",*?") & set(text)) and not Path(text).exists():
            raise InputError(f"{text}: several models or devices fill a folder; give one with -o DIR/")
    from .export import sweep_csv, write_sweep
    from .grid import parse_axis
    from .grid import sweep as run

    axes = _once(map(parse_axis, over), over)
    path = Path(output) if output else None
    if path and path.suffix not in (".csv", ".parquet"):
        raise InputError(
            f"{path}: must end in .csv or .parquet, the formats a sweep is written in, or in / for a folder"
        )
    points = 1
    for values in axes.values():
        points *= len(values)
    shown = points >= _LONG and sys.stderr.isatty()
    with click.progressbar(length=points, label=counted(points, "point"), file=sys.stderr, hidden=not shown) as bar:
        result = run(model, hardware, axes, progress=lambda done, _: bar.update(done - bar.pos), **question)
    if path:
        write_sweep(path, result)
        click.echo(f"{path}: {counted(len(result), 'point')}", err=True)
    else:
        click.echo(sweep_csv(result), nl=False)


def _fill(
    model: str,
    hardware: str,
    over: Sequence[str],
    output: str | None,
    question: Mapping[str, Any],
    *,
    workers: int | None,
    shard: str | None,
    dask: str | None,
    shard_points: int | None,
) -> None:
    """Works out shards of a sweep."""
    from .grid import NUMBERS
    from .hardware_files import hardware_names
    from .layout import ALONE, parse_layout
    from .model_files import model_names
    from .shards import SHARD_POINTS, Design, named, parse_over, run

    if output is None:
        raise InputError("-o DIR/ must name the folder that --workers, --shard and --dask fill")
    if workers and dask:
        raise InputError("--workers and --dask exclude each other: a Dask cluster has workers of its own")
    options = dict(question)
    layout, offload = options.pop("layout"), str(options.pop("offload"))
    text = "" if layout == ALONE else str(layout)
    if parse_layout(text) != layout:
        alone = "--micro-batches, --collective, --hierarchical-all-to-all and --overlap"
        raise InputError(f"{alone} are not for sweeps in a folder")
    given = {name: options.pop(name) for name in NUMBERS}
    axes: dict[str, Any] = {name: [value] for name, value in given.items() if value is not None}
    axes |= {name: [value] for name in ("quant", "attention") if (value := options.pop(name))}
    axes |= {"layout": [text], "offload": [offload]}
    swept = _once(map(parse_over, over), over)
    design = Design.of(
        named(model, model_names(), command="models"),
        named(hardware, hardware_names(), command="hardware"),
        {**axes, **swept},
        shard_points=shard_points or SHARD_POINTS,
        **options,
    )
    folder, part, told = Path(output), _part(shard or "1/1"), _Progress()
    run(folder, design, workers=workers or 1, shard=part, dask=dask, progress=told)
    shards = len(range(part[0] - 1, design.shards, part[1]))
    click.echo(f"{folder}: {counted(told.points, 'point')} in {counted(shards, 'shard')}", err=True)


def _once(parsed: Iterable[tuple[str, _Values]], over: Sequence[str]) -> dict[str, _Values]:
    """The axes of --over.

    Raises InputError where one is there twice, or an option says what one of them does.
    """
    axes, context = dict(parsed), click.get_current_context()
    if len(axes) < len(over):
        raise InputError(f"--over: an axis is given twice; got {', '.join(over)}")
    for axis in axes:
        for name in _DEGREES if axis == "layout" else (axis,):
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                option = f"--{name.replace('_', '-')}"
                raise InputError(f"{option}: the axis {axis} of --over says it too; give one of them")
    return axes


def _part(text: str) -> tuple[int, int]:
    """Read "3/40"."""
    i, _, n = text.partition("/")
    if not (i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n)):
        raise InputError(f"--shard must be I/N with I from 1 to N, such as 3/40; got {text!r}")
    return int(i), int(n)


class _Progress:
    """Says on stderr how far a sweep is: over and over on a terminal, else every ten seconds."""

    def __init__(self) -> None:
        self.points = self.first = 0
        self.start = self.told = time.monotonic()
        self.live = sys.stderr.isatty()

    def __call__(self, done: int, points: int) -> None:
        now = time.monotonic()
        if not self.points:
            self.points, self.first, self.start = points, done, now
            return
        if not self.live and now - self.told < _QUIET_S:
            return
        self.told = now
        rate = (done - self.first) / max(now - self.start, 1e-9)
        left = (points - done) / rate if rate else 0
        hours, rest = divmod(round(left), 3600)
        line = f"{done:,} of {points:,} points, {rate:,.0f}/s, {hours}:{rest // 60:02}:{rest % 60:02} left"
        click.echo(f"\r{line}\x1b[K" if self.live else line, err=True, nl=not self.live or done == points)


def _summarize(
    folder: Path, model: str | None, by: str, form: str | None, output: Path | None, *, expected: bool
) -> None:
    from .reports.sweeps import render
    from .shard_summary import summarize

    if model:
        raise InputError(f"--summary is of what a folder holds; leave out {model}")
    axes = [axis.strip() for axis in by.split(",") if axis.strip()]
    form = shared.form_of(form, output, _SUMMARIES)
    shared.emit(render(summarize(folder, axes, expected=expected), form), output)


@cli.command()
@click.argument("model")
@click.argument("hardware", nargs=-1, required=True)
@click.option("--also", metavar="MODEL", multiple=True, help="Another model. May be repeated.")
@click.option(
    "--quant",
    "quants",
    metavar="SCHEME",
    multiple=True,
    callback=shared.given,
    help="As of analyze. May be repeated.",
)
@click.option("--batch", metavar="NUMBERS", default="1", show_default=True, help="Sequences: 8, 1,8,64 or 1..64*2.")
@click.option("--prompt", type=int, default=1024, show_default=True, help="Tokens of each prompt.")
@click.option("--gen", type=int, default=128, show_default=True, help="Tokens generated of each sequence.")
@functools.partial(_layout, several=True)
@techniques_alone
@shared.compared
def compare(
    *,
    model: str,
    hardware: tuple[str, ...],
    also: tuple[str, ...],
    quants: tuple[str, ...],
    batch: str,
    form: str | None,
    output: Path | None,
    **question: Any,
) -> None:
    """MODEL on several devices: times, memory, throughput, and where the bottleneck moves.

    HARDWARE is one or more names of `llmviewer hardware` or YAML files, or `all`. With --tp, --pp, --ep, --dp and --cp
    the model lies on several of each; several numbers are as many settings.
    """
    shared.check_output(form, output)
    from .comparison import compare as run
    from .grid import parse_axis
    from .hardware_files import hardware_names
    from .reports import comparison as report
    from .transforms.quantize import PUBLISHED

    devices = hardware_names() if hardware == ("all",) else hardware
    _, batches = parse_axis(f"batch={batch}", option="--", most=_COMPARED)
    found = run((model, *also), devices, quants=quants or (PUBLISHED,), batch=list(map(int, batches)), **question)
    shared.emit_report(report, found, form, output)


@cli.command()
@click.option("--model", required=True, help="As of analyze.")
@click.option("--users", type=click.IntRange(1), default=1, show_default=True, help="Who send their prompts at once.")
@click.option("--prompt", type=int, default=1024, show_default=True, help="Tokens of each prompt.")
@click.option("--gen", type=int, default=128, show_default=True, help="Tokens of each answer.")
@click.option(
    "--quant",
    "quants",
    metavar="SCHEME",
    multiple=True,
    callback=shared.given,
    help="A precision that may be used. May be repeated. If not given: published, fp8, W8A8, W4A16g128.",
)
@click.option("--by", type=click.Choice(("speed", "cost", "energy")), default="speed", show_default=True)
@click.option("--budget", metavar="USD", type=float, help="The most that it may cost, all devices together.")
@click.option("--power", metavar="W", type=float, help="The most that its TDP may be, likewise.")
@click.option("--ttft", metavar="SECONDS", type=float, help="The longest time to first token.")
@click.option("--tpot", metavar="SECONDS", type=float, help="The longest time per output token.")
@click.option("--native", is_flag=True, help="Only precisions that the device multiplies as they are.")
@click.option(
    "--max-devices",
    type=int,
    default=1,
    show_default=True,
    help="So many of a kind at most, in one box, cut by tensor parallelism; the fewest that qualify are ranked.",
)
@shared.compared
def choose(*, quants: tuple[str, ...], form: str | None, output: Path | None, **question: Any) -> None:
    """Which device for a use, and how many: those that qualify, ranked, and what disqualifies the others."""
    shared.check_output(form, output)
    from .choice import QUANTS
    from .choice import choose as run
    from .reports import choice as report

    shared.emit_report(report, run(quants=quants or QUANTS, **question), form, output)


@cli.command()
@click.argument("figure", type=click.Choice(FIGURES))
@_setting
@click.option("--batch", type=int, default=1, show_default=True)
@click.option("--prompt", type=int, default=1024, show_default=True)
@click.option("--phase", type=click.Choice(("prefill", "decode")), default="prefill", show_default=True)
@_output(what="the figure: .html, or .png, .svg, .pdf (with the extra `images`)")
def plot(figure: str, output: Path | None, **question: Any) -> None:
    """One of the figures of "LLM Inference Unveiled" for any model and device.

    roofline: the operators under the roof, memory-bound and compute-bound zones (Figure 4); dtypes: the roofs of all
    data types (5); memory: weights, cache and activations by precision (6); decode-time against batch (7);
    prefill-time against prompt length (8). The last three compare the precisions of --quant, separated by semicolons.
    """
    from .reports.plot import draw, write

    path = output or Path(f"{figure}.html")
    write(draw(figure, **question), path)
    click.echo(f"{path}: {figure}", err=True)
