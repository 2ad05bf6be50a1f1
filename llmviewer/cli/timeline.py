"""`llmviewer timeline`: a profiler trace, compared with bounds and expected times."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..errors import InputError
from ..options import RecordingArguments, SettingOptions
from ..units import parse
from . import inputs
from . import options as shared
from .progress import with_progress

if TYPE_CHECKING:
    from ..analyzing.analysis import Analysis
    from ..timelines.against import Timeline
    from ..timelines.launches import KernelSums, RecordedLaunches
    from ..timelines.ranks import RankedTimeline
    from ..timelines.server_steps import ServerSteps


_NAMED = "If not given, from the engine's pass names."


def _size(_: click.Context, __: click.Parameter, text: str) -> int:
    """Bytes of a size such as "4GB"."""
    try:
        return int(parse(text, "B"))
    except ValueError as error:
        raise InputError(f"--max-bytes {error}") from None


@click.command()
@click.argument("files", type=shared.PATH, nargs=-1, required=True, metavar="FILE...")
@click.argument("model")
@click.argument("hardware")
@shared.choice(
    "--phase",
    choices=("decode", "prefill", "mixed"),
    help_text="Passes to compare, if several kinds were recorded: decode: the most frequent; prefill: the longest; "
    "mixed: those that do both, with the sequences that the engine named. If not given, the only kind that the engine "
    "named, else decode.",
)
@shared.number("--passes", "Forward passes in the file; if not given, counted by the layers of the model.")
@shared.number("--stage", "Pipeline stage (--pp) of the recorded device; the first is 1.")
@click.option(
    "--max-bytes",
    metavar="SIZE",
    default="1GiB",
    show_default=True,
    callback=_size,
    help="Largest FILE that is read, unpacked: a small one can unpack to more than memory holds.",
)
@click.option(
    "--against",
    type=shared.PATH,
    metavar="FILE",
    help="A second recording of MODEL, after a change or on another device, to compare with the first.",
)
@click.option("--ranks", is_flag=True, help="Compare all devices in FILE with each other, as ranks of a run.")
@click.option(
    "--since",
    type=shared.PATH,
    metavar="FILE",
    help="Metrics of the same server at an earlier time: the time between the two counts.",
)
@click.option("--against-hardware", metavar="HARDWARE", help="Device of the second recording, if it is another one.")
@click.option("--against-quant", metavar="SCHEME", help="Precision of the second recording, if it is another one.")
@inputs.declared_options(
    RecordingArguments,
    batch={"more": _NAMED},
    prompt={"more": _NAMED},
    kv_len={"more": f"The mean of recorded steps. {_NAMED.removesuffix('.')}, else --prompt + 1."},
)
@shared.report_options
def timeline(
    files: tuple[Path, ...],
    *,
    options: RecordingArguments,
    phase: str | None,
    passes: int | None,
    stage: int | None,
    max_bytes: int,
    against: Path | None,
    ranks: bool,
    since: Path | None,
    against_hardware: str | None,
    against_quant: str | None,
    form: str | None,
    output: Path | None,
    **request: Any,
) -> None:
    """Compare a profiler trace of MODEL with bounds and expected times.

    FILE is a trace of torch.profiler for one rank, GPU or CPU (.json or .json.gz, as vLLM and SGLang write); the
    database of `nsys export --type sqlite`, or the output of `nsys stats --format csv --report cuda_gpu_trace` (or
    cuda_gpu_kern_sum); kernel_trace.csv or kernel_stats.csv of rocprofv3; or a layerwise profile of vLLM (.json).
    Several files, or a folder, are those of the ranks of a run, which are compared with each other too. It may also be
    the metrics of a running vLLM, SGLang or TensorRT-LLM (curl HOST/metrics), or a log of its steps.
    """
    from ..reports.timeline import REPORT

    shared.check_output(form, output)
    if against is None and (against_hardware or against_quant):
        raise InputError(
            "--against-hardware and --against-quant describe a second recording; give it with --against FILE"
        )
    if ranks or len(files) > 1 or files[0].is_dir():
        if against or stage:
            raise InputError("--against and --stage are of a single file; leave them out with the files of ranks")
        from ..reports.trace_ranks import REPORT as RANKS

        ranked = _read_ranks(files, request, options, phase=phase, passes=passes, max_bytes=max_bytes)
        shared.emit_report(RANKS, ranked, form, output)
        return
    from ..timelines.server_metrics import is_telemetry

    if is_telemetry(files[0]):
        if against or stage or passes:
            raise InputError("--against, --stage and --passes are of traces; leave them out with metrics or logs")
        from ..reports.server_steps import REPORT as SERVER

        shared.emit_report(SERVER, _read_server(files[0], since, request, options, max_bytes), form, output)
        return
    if since:
        raise InputError(f"--since is of metrics of a server, which {files[0]} is not")
    read = partial(_read_timeline, phase=phase, passes=passes, stage=stage, max_bytes=max_bytes)
    result = read(files[0], request, options)
    if against is None:
        shared.emit_report(REPORT, result, form, output)
        return
    from ..reports.trace_pairs import REPORT as PAIR
    from ..timelines.pairs import pair

    device = {"hardware": against_hardware} if against_hardware else {}
    precision: SettingOptions = {"quant": against_quant} if against_quant else {}
    other = read(against, {**request, **device}, {**options, **precision})
    shared.emit_report(PAIR, pair(result, other), form, output)


def _read_timeline(
    file: Path,
    request: Mapping[str, Any],
    options: RecordingArguments,
    *,
    phase: str | None,
    passes: int | None,
    stage: int | None,
    max_bytes: int,
) -> Timeline:
    """A recorded pass with its analysis; batch and lengths that are not given come from the engine's pass names."""
    from ..timelines.against import compare_recording

    recording = _recording(file, phase, max_bytes)
    analysis = _analysis(recording, request, options, phase)
    return compare_recording(recording, analysis, file=str(file), phase=phase, passes=passes, stage=stage)


def _read_ranks(
    paths: tuple[Path, ...],
    request: Mapping[str, Any],
    options: RecordingArguments,
    *,
    phase: str | None,
    passes: int | None,
    max_bytes: int,
) -> RankedTimeline:
    """The ranks of a run with their analysis; what the engine named is taken from the first."""
    from ..timelines.ranks import compare_ranks, devices_of, rank_files

    by_file = {file: _recording(file, phase, max_bytes) for file in rank_files(paths)}
    recordings = {str(file): recording for file, recording in by_file.items()}
    if len(by_file) == 1:
        ((file, recording),) = by_file.items()
        recordings = devices_of(file, recording)
    analysis = _analysis(next(iter(recordings.values())), request, options, phase)
    return compare_ranks(recordings, analysis, phase=phase, passes=passes)


def _recording(file: Path, phase: str | None, max_bytes: int) -> RecordedLaunches | KernelSums:
    from ..timelines.reading import read_timeline

    if not file.exists():
        raise InputError(f"{file}: no such file; the trace comes first: llmviewer timeline FILE MODEL HARDWARE")
    read = with_progress(read_timeline, "MB", several="MB", scale=10**6, verb="read")
    return read(file, phase or "decode", max_bytes=max_bytes)


def _analysis(
    recording: RecordedLaunches | KernelSums, request: Mapping[str, Any], options: RecordingArguments, phase: str | None
) -> Analysis:
    """The analysis of a recording; batch and lengths that are not given come from the engine's pass names."""
    from ..analyzing.analysis import analyze
    from ..timelines.passes import named_request, sole_phase

    context = click.get_current_context()
    named = {
        name: value
        for name, value in named_request(recording, phase or sole_phase(recording) or "decode").items()
        if context.get_parameter_source(name) is ParameterSource.DEFAULT
    }
    arguments: Any = {**request, **options, **named}
    return analyze(**arguments)


def _read_server(
    file: Path, since: Path | None, request: Mapping[str, Any], options: RecordingArguments, max_bytes: int
) -> ServerSteps:
    """The telemetry of a server with an analysis of its batch and lengths, unless others are given."""
    from ..analyzing.analysis import analyze
    from ..timelines.server_metrics import read_telemetry
    from ..timelines.server_steps import compare_server, request_of

    load = read_telemetry(file, since=since, max_bytes=max_bytes)
    context = click.get_current_context()
    counted = {
        name: value
        for name, value in request_of(load).items()
        if name == "gen" or context.get_parameter_source(name) is ParameterSource.DEFAULT
    }
    arguments: Any = {**request, **options, **counted}
    return compare_server(load, analyze(**arguments), file=str(file))
