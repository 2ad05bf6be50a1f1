"""`llmviewer simulate`, `plan` and `advise`: requests over time, what to buy for them, and what would help."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from ..errors import InputError
from ..options import AdviceArguments, PlanArguments, PriceOptions, ServedOptions, only
from ..serving.options import LoadCurveArguments, SaturationArguments, SimulationArguments, SimulationOptions
from . import inputs
from . import options as shared
from .comparing import hardware_option, named
from .progress import with_progress, with_progress_bar

if TYPE_CHECKING:
    from ..serving.load_curve import LoadCurve
    from ..serving.saturation import Saturation
    from ..serving.simulation_sweep import SimulationSweep


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
@inputs.declared_options(
    SimulationOptions,
    rate={
        "metavar": "R|max",
        "type": click.UNPROCESSED,
        "callback": shared.or_max(float, "a number of req/s, or max for the maximum throughput"),
        "also": "max: the maximum throughput, with all requests queued at the start.",
    },
    concurrency={
        "type": click.UNPROCESSED,
        "callback": _in_flight,
        "also": "Several, such as 1..256*2 or 4,16,64, give the throughput-latency curve.",
    },
    requests={"also": "With --rate max as many per replica as the measurement takes."},
    policy={"also": "With --rate max the chunk size with the highest throughput."},
    max_batch={"also": "With --rate max as many as fit, up to the engine's, or 2048."},
)
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
@inputs.declared_options(PriceOptions)
@shared.report_options
def simulate(
    *,
    model: str,
    hardware: str,
    options: SimulationArguments,
    form: str | None,
    output: Path | None,
    over: tuple[str, ...],
    seeds: int | None,
    workers: int | None,
    shard: str | None,
    dask: str | None,
) -> None:
    """Simulate a server: requests that arrive over time at MODEL on HARDWARE.

    Reports queue time, TTFT, TPOT, ITL and E2E latency with percentiles, throughput, and the bottleneck. Every step of
    continuous batching with a paged KV cache is simulated, once at its roofline bound and once at its expected time;
    closed-form means are shown for comparison. --rate max finds the maximum throughput; several values of --concurrency
    give throughput and latency for each. --over and --seeds simulate many settings and loads, each with several seeds.
    """
    shared.check_output(form, output)
    in_flight: Any = options["concurrency"]
    several = bool(in_flight and len(in_flight) > 1)
    at_most = str(options["rate"]) == shared.MAX
    result: Any
    if over or seeds:
        if several or at_most:
            other = "--rate max" if at_most else "several values of --concurrency"
            raise InputError(
                f"{other} must be left out with --over and --seeds: give --over rate=... or --over concurrency=... "
                "instead"
            )
        options["concurrency"] = in_flight and in_flight[0]
        from ..reports.simulation_sweep import REPORT as SWEEP

        folder = output if output and not form and (output.is_dir() or not output.suffix) else None
        running: dict[str, Any] = {"seeds": seeds, "workers": workers or 1, "dask": dask, "folder": folder}
        result = _swept(model, hardware, over, options, shard=shard, **running)
        shared.emit_report(SWEEP, result, form, None if folder else output)
        return
    for name, value in {"workers": workers if several or at_most else None, "shard": shard, "dask": dask}.items():
        if value is not None:
            raise InputError(f"--{name} runs the simulations of --over and --seeds; give one of these, or leave it out")
    if at_most:
        from ..reports.saturation import REPORT as SATURATION

        shared.emit_report(SATURATION, _saturated(model, hardware, options), form, output)
        return
    if several:
        from ..reports.load_curve import REPORT as CURVE

        shared.emit_report(CURVE, _curve(model, hardware, options, in_flight), form, output)
        return
    from ..reports.serving import REPORT
    from ..serving.simulation import simulate as run

    options["concurrency"] = in_flight and in_flight[0]
    simulated = with_progress(run, "request")(model, hardware, **options, workers=workers or 1)
    shared.emit_report(REPORT, simulated, form, output)


def _swept(
    model: str,
    hardware: str,
    over: tuple[str, ...],
    options: SimulationArguments,
    *,
    shard: str | None,
    dask: str | None,
    folder: Path | None,
    **running: Any,
) -> SimulationSweep:
    """Simulates all combinations of the values of --over, each with several seeds."""
    from ..devices.files import hardware_names
    from ..model_files import model_names
    from ..serving.simulation_design import parse_simulation_axis
    from ..serving.simulation_sweep import simulation_sweep as run
    from ..sweeping.design import matching_names

    if folder is None and (shard or dask):
        raise InputError("-o DIR/ must name the folder that --shard and --dask write to")
    return with_progress(run, "simulation")(
        matching_names(model, model_names(), command="models"),
        matching_names(hardware, hardware_names(), command="hardware"),
        shared.distinct_axes(map(parse_simulation_axis, over), over),
        folder=folder,
        shard=shared.parse_shard(shard or "1/1"),
        dask=dask,
        message=shared.notice,
        **running,
        **options,
    )


def _curve(model: str, hardware: str, options: SimulationArguments, in_flight: list[int]) -> LoadCurve:
    """Simulates several concurrencies, for throughput against speed."""
    from ..serving.load_curve import concurrency_sweep as run

    if options["rate"] is not None or options["arrivals"] is not None:
        raise InputError("several values of --concurrency exclude --rate and --arrivals; leave these out")
    return with_progress(run, "point")(model, hardware, concurrency=in_flight, **only(options, LoadCurveArguments))


def _saturated(model: str, hardware: str, options: SimulationArguments) -> Saturation:
    """Simulates the maximum throughput."""
    from ..serving.saturation import max_throughput as run

    context = click.get_current_context()
    for name in options:
        is_default = context.get_parameter_source(name) is ParameterSource.DEFAULT
        if not is_default and name != "rate" and name not in SaturationArguments.__annotations__:
            raise InputError(
                f"--rate {shared.MAX} queues all requests at the start, on replicas that prefill and decode; leave out "
                f"--{name.replace('_', '-')}"
            )
    return with_progress(run, "request")(model, hardware, **only(options, SaturationArguments))


@click.command()
@click.argument("model")
@click.option(
    "--rate",
    type=shared.NUMBER,
    required=True,
    metavar="R",
    help="Mean arrival rate in req/s (Poisson arrivals).",
)
@hardware_option
@click.option(
    "--top",
    metavar="N",
    type=shared.WHOLE_NUMBER,
    default=0,
    help="Also show the N cheapest plans, of any device and layout.",
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
@shared.choice(
    "--by",
    choices=("cost", "energy", "devices"),
    help_text="Quantity to minimize. Default: the first of these that is known.",
)
@inputs.declared_options(PlanArguments, prompt=_ALIKE, gen=_ALIKE)
@shared.emit_option
@shared.report_options
def plan(
    *,
    emit: str | None,
    options: PlanArguments,
    hardware: tuple[str, ...],
    prefill_hardware: tuple[str, ...],
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
    from ..serving.planning import plan as run

    question |= {"hardware": named(hardware), "layouts": layouts or None}
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
