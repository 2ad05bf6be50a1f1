"""`llmviewer simulate`, `plan` and `advise`: requests over time, what to buy for them, and what would help."""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from ..errors import InputError
from ..options import AdviceArguments, PlanArguments, ServedOptions
from . import inputs
from . import options as shared
from .comparing import hardware_option, named
from .progress import with_progress, with_progress_bar

_F = TypeVar("_F", bound=Callable[..., object])

_OF_ARRIVALS: Final = (  # options of arrivals, latency targets, changing fleets and separate prefill
    "arrivals", "concurrency", "client", "session_turns", "think_time", "system_prompt", "tasks", "tenants", "router",
    "mtbf", "notice", "recovery", "autoscale", "scale_target", "startup", "prefill_replicas", "prefill_hardware",
    "prefill_layout", "kv_transfer", "kv_link", "ttft", "tpot",
)  # fmt: skip


def _alike(_: click.Context, parameter: click.Parameter, value: Any) -> int | None:
    """Parses a number of tokens, the same for all requests."""
    try:
        return None if value is None else int(value)
    except ValueError:
        from ..serving.lengths import parse_lengths

        name = f"{parameter.name}_lengths"
        try:
            mean = parse_lengths(value, name).mean
        except InputError:
            raise InputError(f"--{parameter.name} must be a whole number of tokens; got {value!r}") from None
        raise InputError(
            f"--{parameter.name} must be a whole number of tokens, as plan assumes equal requests; {value} has "
            f"mean {mean:.0f}, and llmviewer simulate takes it as --{parameter.name}-lengths"
        ) from None


_ALIKE: Final = {"type": click.UNPROCESSED, "metavar": "TOKENS", "callback": _alike}


def _in_flight(_: click.Context, parameter: click.Parameter, value: str | None) -> list[int] | None:
    """Parses numbers of clients."""
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
    callback=shared.or_max(float, "a number of req/s, or max for the maximum throughput"),
    help="Mean arrival rate in req/s (Poisson arrivals); max: the maximum throughput, with all requests queued at the "
    "start.",
)
@click.option(
    "--arrivals",
    type=shared.PATH,
    metavar="FILE",
    help="In place of --rate and lengths, a trace: a CSV file with columns timestamp, prompt, gen and optionally "
    "cached (prefix-cache hits in tokens), session and tenant, or those of Azure's traces or BurstGPT; or a .jsonl "
    "file like Mooncake's.",
)
@click.option(
    "--concurrency",
    metavar="N",
    callback=_in_flight,
    help="In place of --rate, a closed loop: number of clients that each send the next request when theirs finishes, "
    "as server benchmarks do. Several, such as 1..256*2 or 4,16,64, give the throughput-latency curve.",
)
@click.option(
    "--prompt-lengths",
    "--prompt",
    metavar="LENGTHS",
    help="Input tokens: 512, uniform:100-900, lognormal:mean=512,p95=1536 (or two of p50, p90, p95, p99), a data "
    "set (sharegpt4, arxiv, lmsys-chat or translation), or a file with one length per line. Default: 1024.",
)
@click.option(
    "--client",
    metavar="NAME",
    help="With --concurrency, the requests of a benchmark client, inferencex, vllm (vllm bench serve) or sglang "
    "(sglang.bench_serving): their number, and lengths that it draws for the numbers of --prompt and --gen.",
)
@click.option("--gen-lengths", "--gen", metavar="LENGTHS", help="Output tokens, likewise. Default: 128.")
@click.option(
    "--session-turns",
    metavar="N",
    help="Turns of a session, a number or as for --prompt: each repeats the conversation before it, and --prompt is "
    "its new input. --rate is of sessions, --concurrency of users with one session each.",
)
@click.option(
    "--think-time",
    metavar="TIME",
    help="With --session-turns, time from an answer to the next turn: 10, '500 ms', '2 min', exponential:MEAN or "
    "uniform:LEAST-MOST. Default: 0.",
)
@click.option(
    "--system-prompt",
    type=shared.WHOLE_NUMBER,
    metavar="TOKENS",
    help="With --session-turns, input tokens with which every session begins. Default: 0.",
)
@click.option(
    "--tenants",
    metavar="SHARES",
    help="Shares of the requests that each tenant sends at random, such as 1,2; with --arrivals a column tenant names "
    "them.",
)
@click.option(
    "--tasks",
    type=shared.PATH,
    metavar="FILE",
    help="In place of lengths, a YAML file with the calls of an agent's task: lengths, dependencies, branches, loops "
    "and waits for tools. --rate is of tasks, --concurrency of tasks in progress.",
)
@click.option(
    "--policy",
    metavar="POLICY",
    help="Scheduling policy: static, decode-first, prefill-first, prefill-chunks, fcfs or chunked; with :TOKENS as "
    "token budget per step. With ,hold=STEPS, dp ranks wait up to STEPS steps for each other's prefills; with "
    ",hold=STEPS,fill=SHARE, prompts wait as long to fill that share of the budget. ,order=sjf, srpt, mlfq or vtc "
    "admits the shortest output first (,bins=N predicts it), by feedback queues or by fair shares of tenants. "
    "Default: the engine's, or chunked:512; with --rate max the chunk size with the highest throughput.",
)
@shared.number(
    "--requests",
    "Number of requests; with --arrivals the first of the file. Default: 1000; with --rate max as many per replica as "
    "the measurement takes.",
)
@shared.number("--seed", "Seed of random arrivals, lengths and accepted tokens.", default=0)
@shared.number(
    "--max-batch",
    "Maximum running sequences per replica, or per dp rank, if KV memory allows. Default: the engine's, or 256; with "
    "--rate max as many as fit, up to the engine's, or 2048.",
)
@shared.number("--block", "Tokens per KV block. Default: the engine's, or 16.")
@shared.number("--replicas", "Replicas of the model.", default=1)
@click.option(
    "--router",
    metavar="NAME",
    help="Which replica serves a request: round-robin, least-loaded, least-kv, prefix-aware or session. Default: "
    "round-robin.",
)
@click.option(
    "--mtbf",
    metavar="TIME",
    help="Mean time between failures of a replica, or between spot pre-emptions of it (exponential), such as '1 h'. "
    "Another starts in its place.",
)
@click.option(
    "--notice",
    metavar="TIME",
    help="With --mtbf, time from the notice of a failure, after which the replica gets no new requests, to the "
    "failure: 30 to 120 for spot instances. Default: 0.",
)
@click.option(
    "--recovery",
    metavar="WAY",
    help="With --mtbf, how requests of a failed replica go on: fail; restart (from the prompt); recompute (prompt and "
    "output so far); migrate (KV caches travel within the notice, the rest is recomputed). Default: recompute.",
)
@click.option(
    "--autoscale",
    metavar="MIN-MAX",
    help="In place of --replicas, their fewest and most, such as 1-8, by --scale-target.",
)
@click.option(
    "--scale-target",
    type=shared.NUMBER,
    metavar="N",
    help="With --autoscale, unfinished requests per replica above which replicas are added.",
)
@click.option(
    "--startup",
    metavar="TIME",
    help="With --mtbf or --autoscale, time from the start of a replica until it serves requests. Default: that of "
    "reading the weights from the storage of its device.",
)
@click.option(
    "--prefill-replicas",
    type=shared.WHOLE_NUMBER,
    default=0,
    help="Additional replicas for prefill only (disaggregation); the others then only decode.",
)
@click.option("--prefill-hardware", metavar="HARDWARE", help="Devices of the prefill replicas. Default: HARDWARE.")
@click.option(
    "--prefill-layout",
    metavar="DEGREES",
    help="Layout of each prefill replica, such as 'tp=4'. Default: that of the others.",
)
@inputs.transfers
@shared.latency_target("--ttft", "Target: maximum time to first token.", default=inf)
@shared.latency_target("--tpot", "Target: maximum time per output token.", default=inf)
@click.option(
    "--over",
    metavar="AXIS=VALUES",
    multiple=True,
    help="Simulate every value of an axis, with several seeds: rate=5,10,20, replicas=1..8*2, concurrency=..., "
    "'policy=chunked:512;fcfs,order=sjf', router=..., prompt=..., gen=..., quant=..., tp=1,2,4, 'layout=tp=8,tp=4 "
    "pp=2' or a what-if on the device, memory.bandwidth=1x,2x. May be repeated: all combinations. MODEL and HARDWARE "
    "may be lists or patterns; -o DIR/ keeps finished simulations, and the same command resumes.",
)
@click.option(
    "--seeds",
    type=shared.WholeNumber(1),
    metavar="N",
    help="Simulations of each combination, from --seed on: means with 95 % confidence intervals. Default: 5 with "
    "--over, 1 with --arrivals.",
)
@shared.shard_options(
    workers="Processes: with --over or --seeds they run simulations; else the bound and the expected times run at once."
)
@inputs.declared_options(ServedOptions)
@shared.depreciation
@shared.report_options
def simulate(
    *,
    options: ServedOptions,
    form: str | None,
    output: Path | None,
    over: tuple[str, ...],
    seeds: int | None,
    workers: int | None,
    shard: str | None,
    dask: str | None,
    **question: Any,
) -> None:
    """Simulate a server: requests that arrive over time at MODEL on HARDWARE.

    Reports queue time, TTFT, TPOT, ITL and E2E latency with percentiles, throughput, and the bottleneck. Every step of
    continuous batching with a paged KV cache is simulated, once at its roofline bound and once at its expected time;
    closed-form means are shown for comparison. --rate max finds the maximum throughput; several values of --concurrency
    give throughput and latency for each. --over and --seeds simulate many settings and loads, each with several seeds.
    """
    shared.check_output(form, output)
    if over or seeds:
        running: dict[str, Any] = {"seeds": seeds, "workers": workers, "shard": shard, "dask": dask}
        _sweep(form, output, over, question | options, **running)
        return
    in_flight = question["concurrency"]
    single = question["rate"] != shared.MAX and not (in_flight and len(in_flight) > 1)
    for name, value in {"workers": None if single else workers, "shard": shard, "dask": dask}.items():
        if value is not None:
            raise InputError(f"--{name} runs the simulations of --over and --seeds; give one of these, or leave it out")
    if question["rate"] == shared.MAX:
        _saturate(form, output, options, **question)
        return
    in_flight = question.pop("concurrency")
    if in_flight and len(in_flight) > 1:
        _curve(form, output, in_flight, options, **question)
        return
    from ..reports.serving import REPORT
    from ..serving.simulation import simulate as run

    clients = in_flight and in_flight[0]
    simulated = with_progress(run, "request")(**question, **options, concurrency=clients, workers=workers or 1)
    shared.emit_report(REPORT, simulated, form, output)


def _sweep(
    form: str | None,
    output: Path | None,
    over: tuple[str, ...],
    question: dict[str, Any],
    *,
    seeds: int | None,
    workers: int | None,
    shard: str | None,
    dask: str | None,
) -> None:
    """Simulates all combinations of the values of --over, each with several seeds."""
    from ..devices.files import hardware_names
    from ..model_files import model_names
    from ..reports.simulation_sweep import REPORT
    from ..serving.simulation_design import parse_simulation_axis
    from ..serving.simulation_sweep import simulation_sweep as run
    from ..sweeping.design import matching_names

    folder = output if output and not form and (output.is_dir() or not output.suffix) else None
    in_flight = question.pop("concurrency")
    if question["rate"] == shared.MAX or (in_flight and len(in_flight) > 1):
        other = "--rate max" if question["rate"] == shared.MAX else "several values of --concurrency"
        raise InputError(
            f"{other} must be left out with --over and --seeds: give --over rate=... or --over concurrency=... instead"
        )
    if folder is None and (shard or dask):
        raise InputError("-o DIR/ must name the folder that --shard and --dask write to")
    axes = shared.distinct_axes(map(parse_simulation_axis, over), over)
    swept = with_progress(run, "simulation")(
        matching_names(question.pop("model"), model_names(), command="models"),
        matching_names(question.pop("hardware"), hardware_names(), command="hardware"),
        axes,
        seeds=seeds,
        folder=folder,
        workers=workers or 1,
        shard=shared.parse_shard(shard or "1/1"),
        dask=dask,
        message=shared.notice,
        concurrency=in_flight and in_flight[0],
        **question,
    )
    shared.emit_report(REPORT, swept, form, None if folder else output)


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
    """Simulates several concurrencies, for throughput against speed."""
    from ..reports.load_curve import REPORT
    from ..serving.load_curve import concurrency_sweep as run

    if rate is not None or arrivals is not None:
        raise InputError("several values of --concurrency exclude --rate and --arrivals; leave these out")
    shared.emit_report(REPORT, with_progress(run, "point")(concurrency=in_flight, **question, **options), form, output)


def _saturate(form: str | None, output: Path | None, options: ServedOptions, *, rate: str, **question: Any) -> None:
    """Simulates the maximum throughput."""
    from ..reports.saturation import REPORT
    from ..serving.saturation import max_throughput as run

    context = click.get_current_context()
    for name in _OF_ARRIVALS:
        del question[name]
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise InputError(
                f"--rate {rate} queues all requests at the start, on replicas that prefill and decode; leave out "
                f"--{name.replace('_', '-')}"
            )
    shared.emit_report(REPORT, with_progress(run, "request")(**question, **options), form, output)


def _percentile_target(name: str, help_text: str) -> Callable[[_F], _F]:
    """An option whose value is a limit on the mean or a percentile of a time."""
    return click.option(name, metavar="TARGET", type=click.UNPROCESSED, default=inf, help=help_text)


@click.command()
@click.argument("model")
@click.option(
    "--rate",
    type=shared.NUMBER,
    required=True,
    metavar="R",
    help="Mean arrival rate in req/s (Poisson arrivals).",
)
@_percentile_target(
    "--ttft", "Target of the time to first token: 0.5 or 500ms for 90 % of the requests, p99=0.5, or mean=0.5."
)
@_percentile_target("--tpot", "Target of the time per output token, likewise.")
@hardware_option
@shared.number("--max-devices", "Maximum devices, of all replicas together.", default=16)
@click.option(
    "--top",
    metavar="N",
    type=shared.WHOLE_NUMBER,
    default=0,
    help="Also show the N cheapest plans, of any device and layout.",
)
@shared.quants(
    "A precision to consider. May be repeated. Default: published, fp8 and W8A8 with a KV cache of 8 bits (fp8KV8, "
    "W8A8KV8) and without, W4A16g128, W4A8g128, KV8."
)
@click.option(
    "--layout",
    "layouts",
    metavar="DEGREES",
    multiple=True,
    help="A layout of a replica to consider, such as 'tp=4 pp=2', or '' for one device. May be repeated. Default: one "
    "device, tp=2, 4, 8, 16, pp=2, and pp=2 with tp=2 and 4; for experts also tp and dp of 2, 4, 8, 16 with equal ep.",
)
@click.option(
    "--disaggregated",
    is_flag=True,
    help="Also try separate prefill and decode replicas, and compare.",
)
@click.option(
    "--prefill-hardware",
    metavar="NAMES",
    multiple=True,
    help="With --disaggregated, devices that may prefill for any of --hardware. Default: the same device for both.",
)
@inputs.transfers
@shared.choice(
    "--by",
    choices=("cost", "energy", "devices"),
    help_text="Quantity to minimize. Default: the first of these that is known.",
)
@inputs.declared_options(PlanArguments, prompt=_ALIKE, gen=_ALIKE)
@shared.depreciation
@shared.emit_option
@shared.report_options
def plan(
    *,
    emit: str | None,
    options: PlanArguments,
    hardware: tuple[str, ...],
    prefill_hardware: tuple[str, ...],
    quants: tuple[str, ...],
    layouts: tuple[str, ...],
    form: str | None,
    output: Path | None,
    **question: Any,
) -> None:
    """Find the cheapest devices that serve MODEL at an arrival rate within latency targets.

    Tries devices, replicas, layouts, precisions and batches; also lists alternatives within the targets, the Pareto
    front, and the reason that rules out each other device. With --disaggregated, also separate devices for prefill and
    decode (xPyD).
    """
    shared.check_output(form, output, emit)
    from ..reports.plans import REPORT
    from ..serving.planning import QUANTS
    from ..serving.planning import plan as run

    question |= {"hardware": named(hardware), "quants": quants or QUANTS, "layouts": layouts or None}
    if prefill_hardware:
        question["prefill_hardware"] = named(prefill_hardware)
        if question["prefill_hardware"] is None:
            raise InputError("--prefill-hardware must name devices; leave it out for the same device for both")
    service_plan = with_progress_bar("layouts and precisions", functools.partial(run, **question, **options))
    if emit is not None:
        best = service_plan.best
        if best is None or best.prefill_workers:
            raise InputError("--emit writes the command of the cheapest replica within the targets; there is none")
        replica, tokens = service_plan.replica_setting(best), service_plan.prompt + service_plan.gen
        shared.emit_command(replica, emit, output, sequences=best.limit, tokens=tokens)
        return
    shared.emit_report(REPORT, service_plan, form, output)


@click.command()
@click.argument("model")
@click.argument("hardware")
@shared.choice(
    "--for",
    "wanted",
    choices=("latency", "ttft", "tpot", "throughput"),
    help_text="Quantity to improve.",
    default="latency",
)
@shared.number(
    "--max-devices", "Also try tensor and expert parallelism over 2, 4, ... up to this many devices (at most 64).",
    default=1,
)  # fmt: skip
@shared.latency_target("--ttft", "Target: maximum time to first token.", default=inf)
@shared.latency_target(
    "--tpot", "Target: maximum time per output token; for throughput, batches are as large as it allows.", default=inf
)
@click.option("--research", is_flag=True, help="Also try techniques and precisions that no engine runs today.")
@click.option(
    "--without",
    type=click.Choice(("answers", "draft", "model")),
    multiple=True,
    help="Leave out techniques that change the output, or require a draft model or retrained weights. May be repeated.",
)
@inputs.declared_options(AdviceArguments)
@shared.emit_option
@shared.report_options
def advise(
    *, options: AdviceArguments, form: str | None, output: Path | None, emit: str | None, **question: Any
) -> None:  # fmt: skip
    """Rank techniques by their gain for MODEL on HARDWARE.

    Changes that engines run today are tried alone and in combinations of two and three: precisions, an 8-bit KV cache,
    layouts, batches, prefix caching, chunked prefill and speculative decoding; with --engine those of the engine.
    Effects on output quality are not considered. Options set the configuration in use.
    """
    shared.check_output(form, output, emit)
    from ..reports.advice import REPORT
    from ..serving.advice import advise as run

    advice = with_progress_bar("techniques", functools.partial(run, **question, **options))
    if emit is not None:
        sequences, tokens = advice.recommended_batch, advice.prompt + advice.gen
        shared.emit_command(advice.recommended_setting, emit, output, sequences=sequences, tokens=tokens)
        return
    shared.emit_report(REPORT, advice, form, output)
