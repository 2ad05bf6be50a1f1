"""A server's mean step, by its telemetry, beside the bound and the expected time of such a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, field, replace
from statistics import fmean
from typing import Any, Final, NamedTuple

from .. import __version__
from ..analyzing.analysis import Analysis
from ..analyzing.phases import Phase, mixed_phase
from ..errors import InputError
from ..records import frozen
from ..workload import Spans, Workload
from .server_metrics import LoggedStep, ServerLoad

SCHEMA_VERSION: Final = 1
STEP: Final = "time between tokens"
_LOGGED: Final = ("decode_steps", "mixed_steps", "prefill_steps")


class ServerTime(NamedTuple):
    """A measured time beside the bound and the expected time, with its 80 % interval. [s]"""

    name: str
    measured_s: float
    bound_s: float
    expected_s: float | None
    expected_low_s: float | None
    expected_high_s: float | None


@frozen(kw_only=True)
class ServerSteps:
    """Times of a server beside those of an analysis.

    prompts_per_step  prompts prefilled in a mean step
    ops, bytes        of a mean step on one device, counted
    """

    file: str
    load: ServerLoad = field(repr=False)
    analysis: Analysis = field(repr=False)
    times: tuple[ServerTime, ...]
    prompts_per_step: float
    ops: float
    bytes: float

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments, as in the JSON document."""
        return {"file": self.file, **self.analysis.inputs}

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each time."""
        for time in self.times:
            yield time._asdict()

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/timeline.md lists its keys."""
        load = {name: value for name, value in asdict(self.load).items() if name not in _LOGGED}
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.analysis.model.name,
            "hardware": self.analysis.hardware.name,
            "inputs": self.inputs,
            "load": load | {name: len(getattr(self.load, name)) for name in _LOGGED},
            "prompts_per_step": self.prompts_per_step,
            "ops_per_step": self.ops,
            "bytes_per_step": self.bytes,
            "times": list(self.rows()),
        }


def request_of(load: ServerLoad) -> dict[str, int]:
    """Batch and lengths of an analysis, as far as the telemetry has them."""
    lengths = {"batch": load.batch, "prompt": load.prompt, "gen": load.output, "kv_len": load.context}
    return {name: max(round(value), 1) for name, value in lengths.items() if value}


def compare_server(load: ServerLoad, analysis: Analysis, *, file: str) -> ServerSteps:
    """Compares the telemetry of a server with an analysis of its batch and lengths.

    Raises InputError if the model does not generate, or the telemetry has no times.
    """
    decode = analysis.phases.decode
    if decode is None:
        raise InputError(f"{file}: telemetry has times between tokens; {analysis.model.name} generates none")
    request = analysis.request
    new = max(request.prompt * (1 - (load.cached or 0.0)), 1.0)
    decodes = decode.workload.groups[0]
    one_prompt = Spans(batch=1, q_len=new, kv_len=request.prompt)
    setting = analysis.setting
    # Each request has one prefill and takes part in as many steps as it generates tokens.
    prompts = decode.batch / max((request.gen or 1), 1)
    with_prompts = mixed_phase(setting, Workload((replace(one_prompt, batch=max(prompts, 1.0)), decodes)))
    share = min(prompts, 1.0)
    times = []
    if load.token_s and not load.decode_steps:
        times.append(_mixture(STEP, load.token_s, decode, with_prompts, share))
    if load.ttft_s:
        prefill = mixed_phase(setting, Workload((one_prompt,)))
        times.append(_time("TTFT without queue", max(load.ttft_s - (load.queue_s or 0.0), 0.0), prefill))
    times += [
        _time(name, fmean(step.time_s for step in steps), _phase_of(steps, analysis))
        for name, steps in (
            ("decode steps", load.decode_steps), ("mixed steps", load.mixed_steps),
            ("prefill steps", load.prefill_steps),
        )
        if steps
    ]  # fmt: skip
    if not times:
        raise InputError(f"{file}: has no times of tokens or steps")
    mean = {
        name: (1 - share) * getattr(decode.total, name) + share * getattr(with_prompts.total, name)
        for name in ("ops", "bytes")
    }
    return ServerSteps(
        file=file, load=load, analysis=analysis, times=tuple(times), prompts_per_step=prompts, **mean
    )  # fmt: skip


def _phase_of(steps: Sequence[LoggedStep], analysis: Analysis) -> Phase:
    """The mean of logged steps as a phase; contexts that are not logged are those of the analysis."""
    count, request = len(steps), analysis.request
    prompts = sum(step.prompts for step in steps) / count
    decodes = sum(step.decodes for step in steps) / count
    groups = []
    if prompts:
        new = max(sum(step.prompt_tokens for step in steps) / count / prompts, 1.0)
        groups.append(Spans(batch=prompts, q_len=new, kv_len=new))
    if decodes:
        groups.append(Spans(batch=decodes, q_len=1, kv_len=request.kv_len or request.prompt + 1))
    return mixed_phase(analysis.setting, Workload(tuple(groups)))


def _time(name: str, measured_s: float, phase: Phase) -> ServerTime:
    return ServerTime(
        name, measured_s, phase.time_s, phase.expected_time_s, phase.expected_low_s, phase.expected_high_s
    )


def _mixture(name: str, measured_s: float, decode: Phase, mixed: Phase, share: float) -> ServerTime:
    """The mean of steps of which a share also prefills."""

    def mean(attribute: str) -> float | None:
        of_decode, of_mixed = getattr(decode, attribute), getattr(mixed, attribute)
        return None if of_decode is None or of_mixed is None else (1 - share) * of_decode + share * of_mixed

    bound_s = mean("time_s")
    assert bound_s is not None
    ends = (mean(f"expected{end}_s") for end in ("_time", "_low", "_high"))
    return ServerTime(name, measured_s, bound_s, *ends)
