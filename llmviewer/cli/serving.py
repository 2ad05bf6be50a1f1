"""`llmviewer simulate`, `plan` and `advise`: requests over time, what to buy for them, and what would help."""

from __future__ import annotations

import functools
from math import inf
from pathlib import Path
from typing import Any, Final

import click

from ..errors import InputError
from ..options import FleetOptions, ServedOptions
from . import inputs
from . import options as shared
from .comparing import hardware_option, named
from .progress import with_progress, with_progress_bar

_QUEUES: Final = {  # what is said of requests that wait, or are read elsewhere, where none of it is
    "arrivals": None, "concurrency": None, "readers": 0, "prefill_hardware": None, "prefill_layout": None,
    "kv_transfer": None, "kv_link": None, "ttft": inf, "tpot": inf,
}  # fmt: skip


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


def _in_flight(_: click.Context, parameter: click.Parameter, value: str | None) -> list[int] | None:
    """Numbers of requests."""
    if value is None:
        return None
    from ..sweeping.axes import parse_numbers

    return parse_numbers(value, where=f"--{parameter.name}")


@click.command()
@click.argument("model")
@click.argument("hardware")
@click.option(
    "--rate",
    metavar="R|max",
    type=click.UNPROCESSED,
    callback=shared.or_max(float, "a number of requests a second, or max for as many as are served"),
    help="Requests a second, which arrive at random (Poisson); max: all are there at the start, for the most that is "
    "served.",
)
@click.option(
    "--arrivals",
    type=shared.PATH,
    metavar="FILE",
    help="In place of --rate and lengths: a CSV file with columns timestamp, prompt and gen, or those of Azure's "
    "traces or of BurstGPT; and cached, tokens of each prompt that are in a cache already, where there are any. Or a "
    ".jsonl file, as Mooncake's traces.",
)
@click.option(
    "--concurrency",
    metavar="N",
    callback=_in_flight,
    help="In place of --rate: requests in flight, of clients that each send the next when theirs is answered, as "
    "benchmarks of servers do. Several, such as 1..256*2 or 4,16,64, give the curve of throughput against speed.",
)
@click.option(
    "--prompt-lengths",
    "--prompt",
    metavar="LENGTHS",
    help="Tokens of prompts: 512, uniform:100-900, lognormal:mean=512,p95=1536 (or two of p50, p90, p95, p99), a data "
    "set (sharegpt4, arxiv, lmsys-chat or translation), or a file with one length a line. 1024 if not given.",
)
@click.option("--gen-lengths", "--gen", metavar="LENGTHS", help="Tokens of answers, likewise. 128 if not given.")
@click.option(
    "--policy",
    metavar="POLICY",
    help="What a step takes: static, decode-first, prefill-first, prefill-chunks, fcfs or chunked; with :TOKENS those "
    "that it reads at most, and with ,hold=STEPS those for which dp ranks hold prompts back for each other. If not "
    "given, the engine's, or chunked:512; with --rate max the chunks that serve most.",
)
@shared.number(
    "--requests",
    "How many arrive; with --arrivals the first so many of the file. 1000 if not given; with --rate max "
    "as many of each copy as it takes.",
)
@shared.number("--seed", "Seed of random arrivals, lengths and accepted tokens.", default=0)
@shared.number(
    "--max-batch",
    "Most sequences at a time of each copy, or of each of its dp ranks, where memory has room. If not given, the "
    "engine's, or 256; with --rate max as many as it has room for, up to the engine's, or 2048.",
)
@shared.number("--block", "Tokens of a block of the KV cache; if not given, the engine's, or 16.")
@shared.number("--copies", "Copies of the model; requests go to them in turn.", default=1)
@click.option(
    "--readers",
    type=shared.WHOLE_NUMBER,
    default=0,
    help="More copies, which only read prompts, so that the others only decode.",
)
@click.option("--prefill-hardware", metavar="HARDWARE", help="In place of HARDWARE, the devices of the readers.")
@click.option(
    "--prefill-layout", metavar="DEGREES", help="How each reader lies, such as 'tp=4'; as the others if not given."
)
@click.option("--kv-transfer", metavar="after|overlapped", help="As in analyze; after if not given.")
@click.option("--kv-link", metavar="scale-out|scale-up", help="As in analyze; scale-out if not given.")
@shared.latency_target("--ttft", "Goal: the longest time to first token.", default=inf)
@shared.latency_target("--tpot", "Goal: the longest time per output token.", default=inf)
@inputs.declared_options(ServedOptions)
@shared.depreciation
@shared.report_options
def simulate(*, options: ServedOptions, form: str | None, output: Path | None, **question: Any) -> None:
    """Simulate requests that arrive over time at MODEL on HARDWARE.

    Gives percentiles of their times, and what limits. Steps are simulated one by one with a paged KV cache; means in
    closed form stand beside them. Everything is given twice: at the bound, and as expected of kernels. --rate max finds
    the maximum throughput; --concurrency with several numbers, what more requests in flight gain and cost.
    """
    shared.check_output(form, output)
    if question["rate"] == shared.MAX:
        _saturate(form, output, options, **question)
        return
    in_flight = question.pop("concurrency")
    if in_flight and len(in_flight) > 1:
        _curve(form, output, in_flight, options, **question)
        return
    from ..reports.serving import REPORT
    from ..serving.simulation import simulate as run

    simulated = with_progress(run, "request")(**question, **options, concurrency=in_flight and in_flight[0])
    shared.emit_report(REPORT, simulated, form, output)


def _curve(
    form: str | None,
    output: Path | None,
    in_flight: list[int],
    options: ServedOptions,
    *,
    rate: object,
    arrivals: object,
    **question: Any,
) -> None:
    """Throughput against speed, along the requests in flight."""
    from ..reports.load_curve import REPORT
    from ..serving.load_curve import load_curve as run

    if rate is not None or arrivals is not None:
        raise InputError("--concurrency must be alone; leave out --rate and --arrivals")
    shared.emit_report(REPORT, with_progress(run, "point")(concurrency=in_flight, **question, **options), form, output)


def _saturate(form: str | None, output: Path | None, options: ServedOptions, *, rate: str, **question: Any) -> None:
    """What is served at most."""
    from ..reports.saturation import REPORT
    from ..serving.saturation import saturate as run

    for name, unset in _QUEUES.items():
        if question.pop(name) != unset:
            raise InputError(
                f"--rate {rate} has all requests there from the start, of copies that both read and decode; leave out "
                f"--{name.replace('_', '-')}"
            )
    shared.emit_report(REPORT, with_progress(run, "request")(**question, **options), form, output)


@click.command()
@click.argument("model")
@click.option(
    "--rate",
    type=shared.NUMBER,
    required=True,
    metavar="R",
    help="Requests a second, which arrive at random (Poisson).",
)
@shared.latency_target("--ttft", "The longest mean time to first token.", default=inf)
@shared.latency_target("--tpot", "The longest mean time per output token.", default=inf)
@click.option(
    "--prompt", metavar="TOKENS", default="1024", show_default=True, callback=_alike, help="Tokens of each prompt."
)
@click.option(
    "--gen", metavar="TOKENS", default="256", show_default=True, callback=_alike, help="Tokens of each answer."
)
@hardware_option
@shared.number("--max-devices", "The most devices, of all copies of the model together.", default=16)
@shared.quants(
    "A precision that is allowed. May be repeated. If not given: published, fp8 and W8A8 with a cache of 8 bits "
    "(fp8KV8, W8A8KV8) and without, W4A16g128, W4A8g128, KV8."
)
@click.option(
    "--layout",
    "layouts",
    metavar="DEGREES",
    multiple=True,
    help="A layout that a copy may have, such as 'tp=4 pp=2', or '' for one device. May be repeated. If not given: one "
    "device, tp=2, 4, 8, 16, pp=2, and pp=2 with tp=2 and 4; with experts also tp and dp of 2, 4, 8, 16 with as many "
    "ep.",
)
@click.option(
    "--disaggregated",
    is_flag=True,
    help="Also try copies that only read prompts, beside others that only write answers, and compare.",
)
@click.option(
    "--prefill-hardware",
    metavar="NAMES",
    multiple=True,
    help="With --disaggregated, devices of which any may read for any of --hardware. If not given, each kind reads for "
    "itself.",
)
@click.option(
    "--kv-transfer", metavar="after|overlapped", help="With --disaggregated, as in analyze; after if not given."
)
@click.option(
    "--kv-link", metavar="scale-out|scale-up", help="With --disaggregated, as in analyze; scale-out if not given."
)
@shared.choice(
    "--by",
    choices=("cost", "energy", "devices"),
    help_text="What is to be low; if not given, the first of these that is known.",
)
@inputs.declared_options(FleetOptions)
@shared.depreciation
@shared.report_options
def plan(
    *,
    options: FleetOptions,
    hardware: tuple[str, ...],
    prefill_hardware: tuple[str, ...],
    quants: tuple[str, ...],
    layouts: tuple[str, ...],
    form: str | None,
    output: Path | None,
    **question: Any,
) -> None:
    """Find the cheapest devices that serve MODEL at a rate.

    Tries devices, count, layout, precision and batch within given times; also lists what else meets them, the Pareto
    front, and what rules out each other device. With --disaggregated, says whether separate devices for prefill and
    decode (xPyD) take less.
    """
    shared.check_output(form, output)
    from ..reports.plans import REPORT
    from ..serving.planning import QUANTS
    from ..serving.planning import plan as run

    question |= {"hardware": named(hardware), "quants": quants or QUANTS, "layouts": layouts or None}
    if prefill_hardware:
        question["prefill_hardware"] = named(prefill_hardware)
        if question["prefill_hardware"] is None:
            raise InputError("--prefill-hardware must name devices; leave it out, and each kind reads for itself")
    found = with_progress_bar("layouts and precisions", functools.partial(run, **question, **options))
    shared.emit_report(REPORT, found, form, output)


@click.command()
@click.argument("model")
@click.argument("hardware")
@shared.choice(
    "--for",
    "wanted",
    choices=("latency", "ttft", "tpot", "throughput"),
    help_text="What is to get better.",
    default="latency",
)
@shared.number("--batch", "Sequences at a time.", default=1)
@shared.number("--prompt", "Tokens of each prompt.", default=1024)
@shared.number("--gen", "Tokens generated of each sequence.", default=128)
@shared.number(
    "--max-devices", "Also try tensor parallelism over 2, 4, ... devices, up to so many (64 at most).", default=1
)
@click.option(
    "--without",
    type=click.Choice(("answers", "draft", "model")),
    multiple=True,
    help="Leave out what changes the answers, or what needs a draft or a model made for it. May be repeated.",
)
@inputs.declared_options(ServedOptions)
@shared.report_options
def advise(*, options: ServedOptions, form: str | None, output: Path | None, **question: Any) -> None:
    """Rank what each technique would gain for MODEL on HARDWARE.

    Techniques are tried alone and in combinations of two and three, with their default parameters (`llmviewer
    techniques`). How much they change the answers is not weighed. Options tell what is in use already.
    """
    shared.check_output(form, output)
    from ..reports.advice import REPORT
    from ..serving.advice import advise as run

    found = with_progress_bar("techniques", functools.partial(run, **question, **options))
    shared.emit_report(REPORT, found, form, output)
