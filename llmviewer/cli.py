"""The command line. What is heavy is imported by the command that needs it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from . import __version__
from .errors import InputError

if TYPE_CHECKING:
    from .analysis import Analysis

FORMATS: Final = ("text", "json", "csv", "markdown", "html")
FIGURES: Final = ("roofline", "dtypes", "memory", "decode-time", "prefill-time")
_SUFFIXES: Final = {".json": "json", ".csv": "csv", ".md": "markdown", ".html": "html", ".txt": "text"}
_LONG: Final = 200_000  # points of a sweep that take long enough for a progress bar

_F = TypeVar("_F", bound=Callable[..., object])


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0, or 2 with one line on stderr where the input is at fault."""
    try:
        cli.main(args=arguments, prog_name="llmviewer", standalone_mode=False)
    except (InputError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        click.echo(f"llmviewer: {' '.join(message.split())}", err=True)
        return 2
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    return 0


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: llmviewer analyze llama-2-7b rtx-a6000",
)
@click.version_option(__version__, message="llmviewer %(version)s")
def cli() -> None:
    """Where the time of an LLM goes on a machine, what bounds it, and what would change it, by how much."""


def _setting(command: _F) -> _F:
    """The options that every question about a model on a device has."""
    options = (
        click.argument("model"),
        click.argument("hardware"),
        click.option(
            "--quant",
            metavar="SCHEME",
            help="Bits or formats of weights, activations and KV cache: W4A16g128, W8A8KV8, fp8, Wnf4A16; for parts of "
            "the model: W4A16g128,down_proj=W8A16,layers.0-3=W16A16. As published if not given.",
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
        click.option(
            "--hardware-set",
            metavar="KEY=VALUE",
            multiple=True,
            help="What if: memory.bandwidth=2x, matrix.fp16='155 TOP/s', memory.capacity='48 GB'. May be repeated.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _output(*, what: str) -> Callable[[_F], _F]:
    return click.option(
        "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help=f"Write {what} to a file."
    )


@cli.command()
@_setting
@click.option("--batch", type=int, default=1, show_default=True, help="Sequences at a time.")
@click.option("--prompt", type=int, default=1024, show_default=True, help="Tokens of each prompt.")
@click.option("--gen", type=int, default=128, show_default=True, help="Tokens generated of each sequence.")
@click.option("--kv-len", type=int, help="Tokens that the decode step shown attends to. The first step's if not given.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="Text if not given, or what the file's name says.")
@click.option("--per-call/--all-calls", default=None, help="OPs and bytes of one launch, or of all (text, markdown).")
@_output(what="the report")
def analyze(
    *, form: str | None, per_call: bool | None, output: Path | None, hardware_set: tuple[str, ...], **question: Any
) -> None:
    """The roofline of MODEL on HARDWARE: every operator of prefill and decode, memory, and the generation.

    MODEL is a name of `llmviewer models`, a config.json or a folder with one, org/name on the Hugging Face hub, a
    GGUF or safetensors file, a YAML file, or package.module:callable; HARDWARE is a name of `llmviewer hardware` or a
    YAML file.
    """
    from .analysis import analyze as run

    chosen = form or (_SUFFIXES.get(output.suffix.lower(), "text") if output else "text")
    analysis = run(hardware_set=hardware_set, **question)
    _emit(_rendered(analysis, chosen, per_call=per_call, to_file=output is not None), output)


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
    text = render(analysis, width=shutil.get_terminal_size()[0] if colored else 0, per_call=per_call)
    return text if colored else click.unstyle(text)


@cli.command()
@click.argument("name", required=False)
@click.option("--graph", is_flag=True, help="The operators of NAME with their tensors and weights.")
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "json", "dot", "mermaid")),
    default="text",
    show_default=True,
    help="dot and mermaid draw the graph.",
)
@_output(what="the list")
def models(name: str | None, form: str, output: Path | None, *, graph: bool) -> None:
    """The models that ship, or the facts or the graph of one (a NAME, or the path of a config.json)."""
    import json

    from .analysis import describe_model
    from .model_files import load_model, model_names

    if graph or form in ("dot", "mermaid"):
        if not name:
            raise InputError("a graph is that of one model: give its name, such as `llmviewer models gpt2 --graph`")
        from .reports.graph import render

        _emit(render(load_model(name), form), output)
        return
    if form == "json":
        facts = describe_model(load_model(name)) if name else [describe_model(load_model(n)) for n in model_names()]
        _emit(json.dumps(facts, indent=2) + "\n", output)
        return
    from .reports.catalogue import model_card, model_list

    _emit(model_card(load_model(name)) if name else model_list([load_model(n) for n in model_names()]), output)


@cli.command()
@click.argument("name", required=False)
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True)
@_output(what="the list")
def hardware(name: str | None, form: str, output: Path | None) -> None:
    """The devices that ship, or every number of one with its source (a NAME, or the path of a YAML file)."""
    import json

    from .analysis import hardware_facts
    from .hardware_files import hardware_names, load_hardware

    if form == "json":
        names = hardware_names()
        facts = hardware_facts(load_hardware(name)) if name else [hardware_facts(load_hardware(n)) for n in names]
        _emit(json.dumps(facts, indent=2) + "\n", output)
        return
    from .reports.catalogue import hardware_card, hardware_list

    known = [load_hardware(n) for n in hardware_names()] if not name else []
    _emit(hardware_card(load_hardware(name)) if name else hardware_list(known), output)


@cli.command()
@_setting
@click.option(
    "--over",
    metavar="AXIS=VALUES",
    multiple=True,
    required=True,
    help="batch=1..256, batch=1..256*2, prompt=128,512,2048, kv_len=128..4096+128, gen=..., quant=W16A16,W4A16g128, "
    "attention=eager,flash. May be repeated: all combinations.",
)
@click.option("--batch", type=int, default=1, show_default=True, help="Where it is not swept over.")
@click.option("--prompt", type=int, default=1024, show_default=True, help="Where it is not swept over.")
@click.option("--gen", type=int, help="Tokens generated; adds time per token and latency of the whole generation.")
@click.option("--kv-len", type=int, help="Context of the decode step; prompt + 1 if not given.")
@_output(what="the points (.csv or .parquet)")
def sweep(*, over: tuple[str, ...], output: Path | None, **question: Any) -> None:
    """Many settings at once: a row for every combination of the values given with --over."""
    from .export import sweep_csv, write_sweep
    from .grid import parse_axis
    from .grid import sweep as run

    axes = dict(map(parse_axis, over))
    if len(axes) < len(over):
        raise InputError(f"--over: an axis is given twice; got {', '.join(over)}")
    if output and output.suffix not in (".csv", ".parquet"):
        raise InputError(f"{output}: must end in .csv or .parquet, the formats a sweep is written in")
    points = 1
    for values in axes.values():
        points *= len(values)
    shown = points >= _LONG and sys.stderr.isatty()
    with click.progressbar(length=points, label=f"{points} points", file=sys.stderr, hidden=not shown) as bar:
        result = run(over=axes, progress=lambda done, _: bar.update(done - bar.pos), **question)
    if output:
        write_sweep(output, result)
        click.echo(f"{output}: {len(result)} points", err=True)
    else:
        click.echo(sweep_csv(result), nl=False)


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


def _emit(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=False, color=True)
        return
    from .export import write_text

    write_text(output, text)
    click.echo(f"{output}: written", err=True)
