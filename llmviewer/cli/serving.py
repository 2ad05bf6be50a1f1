"""`llmviewer simulate`, `plan` and `advise`: requests over time, what to buy for them, and what would help."""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click

from ..errors import InputError
from . import options as shared
from .comparing import hardware_option, named
from .progress import on_a_bar

_FILE: Final = click.Path(path_type=Path)
_QUEUES: Final = {  # what is said of requests that wait, or are read elsewhere, where none of it is
    "arrivals": None, "readers": 0, "prefill_hardware": None, "kv_transfer": None, "ttft": inf, "tpot": inf,
}  # fmt: skip
_DEGREES: Final = {
    name: f"{kind} parallelism in use, as of analyze."
    for name, kind in {"tp": "Tensor", "pp": "Pipeline", "ep": "Expert", "dp": "Data", "cp": "Context"}.items()
}

_F = TypeVar("_F", bound=Callable[..., object])

_served_with = click.option(
    "--with",
    "techniques",
    metavar="TECHNIQUE",
    multiple=True,
    help="As of analyze: drafts (mtp, eagle, speculative:draft=NAME,alpha=0.7), prompts that begin alike "
    "(prefix-cache:tokens=2000, or hit=0.6), or what changes all steps. May be repeated.",
)

_hardware_set = click.option(
    "--hardware-set", metavar="KEY=VALUE", multiple=True, help="What if, as of compare. May be repeated."
)


def _alike(_: click.Context, parameter: click.Parameter, value: str) -> int:
    """A number of tokens that all requests have."""
    try:
        return int(value)
    except ValueError:
        from ..serving.lengths import parse_lengths

        name = f"{parameter.name}_lengths"
        try:
            mean = parse_lengths(value, name).mean
        except InputError:
            raise InputError(f"--{parameter.name} must be a whole number of tokens; got {value!r}") from None
        raise InputError(
            f"--{parameter.name} must be a whole number of tokens, as plan takes all requests alike; {value} has a "
            f"mean of {mean:.0f}, and llmviewer simulate takes it as --{parameter.name}-lengths"
        ) from None


def _served(command: _F) -> _F:
    """What there is to say of kernels and devices that serve, and of the report."""
    kernels = (shared.library, shared.profiles, shared.engine, shared.bound)
    return shared.all_of(command, *kernels, shared.depreciation, _hardware_set, shared.hardware_path, shared.reported)


def _lies(**degrees: str) -> Callable[[_F], _F]:
    """How the model lies, by degrees, with their help, or in one, which the command gets as one Layout."""

    def decorator(command: _F) -> _F:
        @functools.wraps(command)
        def with_layout(*arguments: Any, layout: str | None, **options: Any) -> object:
            from ..layout import ALONE, Layout, parse_layout

            laid = Layout(**{name: options.pop(name) for name in degrees})
            if layout is not None and laid != ALONE:
                raise InputError(f"--layout and --{str(laid).partition('=')[0]} say the same; give one of them")
            return command(*arguments, layout=laid if layout is None else parse_layout(layout), **options)

        options = [
            *(click.option(f"--{name}", type=int, default=1, help=text) for name, text in degrees.items()),
            click.option("--layout", metavar="DEGREES", help="The same in one, as of plan: 'tp=4 ep=4'."),
        ]
        return shared.all_of(cast("_F", with_layout), *options)

    return decorator


@click.command()
@click.argument("model")
@click.argument("hardware")
@click.option(
    "--rate",
    metavar="R|max",
    type=click.UNPROCESSED,
    callback=shared.or_max(float, "a number of requests a second, or max for as many as are served"),
    help="Requests a second, which come at random (Poisson); max: as many as are served, all there at the start.",
)
@click.option(
    "--arrivals",
    type=_FILE,
    metavar="FILE",
    help="In place of --rate and lengths: a CSV file with columns timestamp, prompt and gen, or as Azure's traces and "
    "BurstGPT have them; and cached, tokens of each prompt that are in a cache already, where there are any. Or a "
    ".jsonl file as Mooncake's traces.",
)
@click.option(
    "--prompt-lengths",
    "--prompt",
    metavar="LENGTHS",
    help="Tokens, 1024 if not given: 512, uniform:100-900, lognormal:mean=512,p95=1536 (or two of p50, p90, p95, p99), "
    "as of sharegpt4, arxiv, lmsys-chat or translation, or a file with one a line.",
)
@click.option("--gen-lengths", "--gen", metavar="LENGTHS", help="Of answers, likewise; 128 if not given.")
@click.option(
    "--policy",
    metavar="POLICY",
    help="static, decode-first, prefill-first, fcfs, or chunked:TOKENS, which a step reads and writes. The engine's, "
    "or chunked:512; with --rate max the chunks that serve most.",
)
@click.option(
    "--requests",
    type=int,
    help="How many come, 1000 if not given; or the first of the file. With --rate max as many as it takes, of a copy.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of arrivals, lengths and accepted tokens drawn.")
@click.option(
    "--max-batch",
    type=int,
    help="Sequences at a time of each copy, or of each of its dp ranks, if memory has room. 256 if not given; with "
    "--rate max as many as it has room for, up to 2048.",
)
@click.option("--block", type=int, help="Tokens of a block of the KV cache. The engine's, or 16.")
@click.option("--copies", type=int, default=1, show_default=True, help="Of the model; requests go to them in turn.")
@click.option(
    "--readers", type=int, default=0, help="More copies, which read the prompts, so that the others decode only."
)
@click.option("--prefill-hardware", metavar="HARDWARE", help="Another kind of devices for the readers.")
@click.option("--kv-transfer", metavar="after|overlapped", help="As of analyze; after if not given.")
@shared.goal("--ttft", "Goal: the longest time to first token.", default=inf)
@shared.goal("--tpot", "Goal: the longest time per output token.", default=inf)
@click.option("--quant", metavar="SCHEME", callback=shared.precision, help="As of analyze.")
@click.option("--attention", metavar="eager|flash", help="As of analyze.")
@_served_with
@_lies(
    tp="Devices that share each copy (tensor parallelism). One if not given.",
    pp="Stages of a pipeline that follow each other.",
    ep="Parts that experts are shared out among.",
    dp="Ranks of a copy with sequences of their own, which wait for each other where experts lie on all.",
    cp="Context parallelism, as of analyze.",
)
@_served
def simulate(*, form: str | None, output: Path | None, **question: Any) -> None:
    """Requests that arrive over time at MODEL on HARDWARE: what they wait, and what holds them up.

    Step by step, with the caches in blocks of memory, for percentiles; beside it the means in closed form. Twice: with
    steps as long as their lower bounds, and as long as is expected of kernels. --rate max says what is served at most.
    """
    shared.check_output(form, output)
    if question["rate"] == shared.MAX:
        _saturate(form, output, **question)
        return
    from ..reports.serving import REPORT
    from ..serving.service import simulate as run

    shared.emit_report(REPORT, run(**question), form, output)


def _saturate(form: str | None, output: Path | None, *, rate: str, **question: Any) -> None:
    """What is served at most."""
    from ..reports.saturation import REPORT
    from ..serving.saturation import saturate as run

    for name, unset in _QUEUES.items():
        if question.pop(name) != unset:
            raise InputError(
                f"--rate {rate} has all requests there from the start, of copies that both read and decode; leave out "
                f"--{name.replace('_', '-')}"
            )
    shared.emit_report(REPORT, run(**question), form, output)


@click.command()
@click.argument("model")
@click.option(
    "--rate", type=float, required=True, metavar="R", help="Requests a second, which come at random (Poisson)."
)
@shared.goal("--ttft", "The longest mean time to first token.", default=inf)
@shared.goal("--tpot", "The longest mean time per output token.", default=inf)
@click.option("--prompt", metavar="TOKENS", default="1024", show_default=True, callback=_alike, help="Of each prompt.")
@click.option("--gen", metavar="TOKENS", default="256", show_default=True, callback=_alike, help="Of each answer.")
@hardware_option
@click.option("--max-devices", type=int, default=16, show_default=True, help="Of all copies of the model together.")
@shared.quants(
    "A precision that may be used. May be repeated. If not given: published, fp8 and W8A8 with a cache of 8 bits "
    "(fp8KV8, W8A8KV8) and without, W4A16g128, W4A8g128, KV8."
)
@click.option(
    "--layout",
    "layouts",
    metavar="DEGREES",
    multiple=True,
    help="How a copy may lie, such as 'tp=4 pp=2', or '' for one device. May be repeated. If not given: one device, "
    "tp=2, 4, 8, 16, pp=2, and pp=2 with tp=2 and 4; with experts also tp and dp of 2, 4, 8, 16 with as many ep.",
)
@_served_with
@click.option(
    "--by", type=click.Choice(("cost", "energy", "devices")), help="What is to be low. The first that is known."
)
@_served
def plan(
    *,
    hardware: tuple[str, ...],
    quants: tuple[str, ...],
    layouts: tuple[str, ...],
    form: str | None,
    output: Path | None,
    **question: Any,
) -> None:
    """The cheapest devices, count, layout, precision and batch that serve MODEL at a rate within given times.

    What else keeps to them, what no other beats (Pareto), and what rules each of the others out.
    """
    shared.check_output(form, output)
    from ..reports.plans import REPORT
    from ..serving.planning import QUANTS
    from ..serving.planning import plan as run

    question |= {"hardware": named(hardware), "quants": quants or QUANTS, "layouts": layouts or None}
    found = on_a_bar("layouts and precisions", functools.partial(run, **question))
    shared.emit_report(REPORT, found, form, output)


@click.command()
@click.argument("model")
@click.argument("hardware")
@click.option(
    "--for",
    "wanted",
    type=click.Choice(("latency", "ttft", "tpot", "throughput")),
    default="latency",
    show_default=True,
    help="What is to be better.",
)
@click.option("--batch", type=int, default=1, show_default=True, help="Sequences at a time.")
@click.option("--prompt", type=int, default=1024, show_default=True, help="Tokens of each prompt.")
@click.option("--gen", type=int, default=128, show_default=True, help="Tokens generated of each sequence.")
@click.option(
    "--quant", metavar="SCHEME", callback=shared.precision, help="As of analyze: the precision that is in use already."
)
@click.option("--attention", metavar="eager|flash", help="As of analyze.")
@_lies(**_DEGREES)
@click.option(
    "--with", "given", metavar="TECHNIQUE", multiple=True, help="One that is in use already. May be repeated."
)
@click.option(
    "--max-devices",
    type=int,
    default=1,
    show_default=True,
    help="Up to which tensor parallelism is tried: 2, 4, ... 64.",
)
@click.option(
    "--without",
    type=click.Choice(("answers", "model")),
    multiple=True,
    help="Leave out what changes the answers, or what needs a model made for it. May be repeated.",
)
@shared.library
@shared.profiles
@shared.engine
@_hardware_set
@shared.hardware_path
@shared.reported
def advise(*, form: str | None, output: Path | None, **question: Any) -> None:
    """What each technique would buy for MODEL on HARDWARE, alone and in combinations of up to three, best first.

    Techniques have their usual parameters (`llmviewer techniques`); how much they change the answers is not weighed.
    """
    shared.check_output(form, output)
    from ..reports.recommendations import REPORT
    from ..serving.advising import recommend as run

    found = on_a_bar("techniques", functools.partial(run, **question))
    shared.emit_report(REPORT, found, form, output)


COMMANDS: Final = (simulate, plan, advise)
