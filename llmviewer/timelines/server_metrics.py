"""Telemetry of a serving engine: metrics in Prometheus' text format, or lines of logs, as the load of a mean step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from ..documents import check_file
from ..errors import InputError
from ..records import frozen

_ENGINES: Final = Path(__file__).with_name("server_metrics.yaml")
_HEAD: Final = 2**16  # bytes by which telemetry is recognized
_JSON: Final = re.compile(r'\s*[\[{]\s*["{\]}]')  # its beginning
_SAMPLE: Final = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_OF_PRIORITY: Final = re.compile(r'priority="[^"]')  # samples that repeat a part of another one
_MAX_VALUE: Final = 1e24


class Mean(NamedTuple):
    """Sum and number of observations."""

    total: float
    observations: float

    @property
    def value(self) -> float | None:
        return self.total / self.observations if self.observations else None


class LoggedStep(NamedTuple):
    """A step of an engine's log; of SGLang, the mean of those since the line before.

    context_tokens  tokens attended to by all decodes; None if not logged
    """

    prompts: int
    prompt_tokens: int
    decodes: int
    time_s: float
    context_tokens: int | None = None


@frozen(kw_only=True)
class ServerLoad:
    """The load of a server, and its times. None where the file has none.

    engine            key of the engine in server_metrics.yaml
    steps             number of steps
    batch             decodes in a mean step
    prompt, output    mean tokens of a request
    cached            share of prompt tokens that were in the prefix cache
    context           mean context of a decode
    token_s           mean time between tokens of a request [s]
    ttft_s, queue_s   mean time to first token, and of it in the queue [s]
    running, waiting  requests at the end
    cache_usage       share of the KV cache in use at the end
    preemptions       number
    ops, bytes        per step of a device, as the engine estimates them
    decode_steps      logged steps that only decode
    mixed_steps       logged steps that prefill and decode
    prefill_steps     logged steps that only prefill
    """

    engine: str
    title: str
    versions: str
    profile: str
    steps: float | None = None
    batch: float | None = None
    prompt: float | None = None
    cached: float | None = None
    output: float | None = None
    context: float | None = None
    token_s: float | None = None
    ttft_s: float | None = None
    queue_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    cache_usage: float | None = None
    preemptions: float | None = None
    ops: float | None = None
    bytes: float | None = None
    decode_steps: tuple[LoggedStep, ...] = ()
    mixed_steps: tuple[LoggedStep, ...] = ()
    prefill_steps: tuple[LoggedStep, ...] = ()


class TelemetryFile(NamedTuple):
    """Metrics or the log of a server, and the name of the file in errors."""

    name: str
    text: str


def is_telemetry(path: Path) -> bool:
    """Whether a file begins like metrics or the log of a known engine."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD).decode("utf-8", errors="replace")
    except OSError:
        return False
    return is_telemetry_text(head)


def is_telemetry_text(text: str) -> bool:
    """Whether a text begins like metrics or the log of a known engine."""
    head = text[:_HEAD]
    return not _JSON.match(head) and bool(_engine_of_metrics(head) or _engine_of_log(head))


def read_telemetry(path: Path, *, since: Path | None = None, max_bytes: int) -> ServerLoad:
    """The load of a server since it started, or between two files of metrics.

    since  metrics of the same server at an earlier time

    Raises InputError if a file is not of one engine, is larger than `max_bytes`, or counts nothing.
    """
    earlier = None if since is None else TelemetryFile(str(since), _text(since, max_bytes))
    return parse_telemetry(TelemetryFile(str(path), _text(path, max_bytes)), earlier)


def parse_telemetry(file: TelemetryFile, since: TelemetryFile | None = None) -> ServerLoad:
    """Load of a server from the contents of its metrics, since those of an earlier file if given, or of its log.

    Raises InputError if a file is not of one engine, or counts nothing.
    """
    path, text = file
    if engine := _engine_of_metrics(text):
        samples = _samples(text, path)
        if since is not None:
            if _engine_of_metrics(since.text) != engine:
                raise InputError(f"{since.name}: must be metrics of {_engines()[engine]['title']}, as {path} is")
            samples = _difference(samples, _samples(since.text, since.name), engine, since.name)
        return _of_metrics(engine, samples, path)
    if engine := _engine_of_log(text):
        if since is not None:
            raise InputError(f"{since.name}: an earlier file is of metrics; {path} is a log, which has single steps")
        return _of_log(engine, text)
    raise InputError(f"{path}: has neither metrics nor logged steps of {', '.join(_engines())}")


@cache
def _engines() -> Mapping[str, Mapping[str, Any]]:
    engines: Mapping[str, Mapping[str, Any]] = yaml.safe_load(_ENGINES.read_text(encoding="utf-8"))
    return engines


def _text(path: Path, max_bytes: int) -> str:
    check_file(path)
    try:
        with path.open("rb") as file:
            raw = file.read(max_bytes + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    if len(raw) > max_bytes:
        raise InputError(f"{path}: must have at most {max_bytes:,} bytes", hint="--max-bytes reads larger files")
    return raw.decode("utf-8", errors="replace")


def _engine_of_metrics(text: str) -> str:
    """The engine whose metrics a text has; "" if none."""
    prefixes = {name: rf"^{re.escape(engine['prefix'])}\w" for name, engine in _engines().items()}
    return next((name for name, prefix in prefixes.items() if re.search(prefix, text, re.MULTILINE)), "")


def _engine_of_log(text: str) -> str:
    """The engine whose steps a log has; "" if none."""
    return next(
        (name for name, engine in _engines().items() if any(re.search(line, text) for line in engine.get("steps", ()))),
        "",
    )


def _samples(text: str, path: str) -> dict[str, list[float]]:
    """Values by name of metric, over all labels.

    Raises InputError, with the line, if one is not of the format.
    """
    samples: dict[str, list[float]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _SAMPLE.match(line)
        try:
            value = float(match[3]) if match else None
        except ValueError:
            value = None
        if match is None or value is None:
            raise InputError(f"{path}:{number}: must be a metric, its labels and a number; got {line[:100]}")
        if _OF_PRIORITY.search(match[2] or "") or not isfinite(value) or not 0 <= value <= _MAX_VALUE:
            continue
        samples.setdefault(match[1], []).append(value)
    return samples


def _difference(
    later: Mapping[str, list[float]], earlier: Mapping[str, list[float]], engine: str, since: str
) -> dict[str, list[float]]:
    """Samples of the time between two files: counters since the earlier one, gauges of the later one."""
    prefix = _engines()[engine]["prefix"]
    gauges = {prefix + name for names in _engines()[engine]["gauges"].values() for name in names}
    changes: dict[str, list[float]] = {}
    for name, values in later.items():
        change = sum(values) - (0.0 if name in gauges else sum(earlier.get(name, ())))
        if change < 0 and name.startswith(prefix) and name.endswith(("_total", "_sum", "_count")):
            raise InputError(f"{since}: must be the earlier of two files of one server; {name} falls by {-change:g}")
        changes[name] = [change]
    return changes


def _of_metrics(engine: str, samples: Mapping[str, Sequence[float]], path: str) -> ServerLoad:
    data = _engines()[engine]
    prefix = data["prefix"]

    def summed(quantity: str) -> float | None:
        names = (*data["gauges"].get(quantity, ()), *data["counters"].get(quantity, ()))
        return next((sum(samples[prefix + name]) for name in names if prefix + name in samples), None)

    def mean(quantity: str) -> Mean:
        for name in data["histograms"].get(quantity, ()):
            count = sum(samples.get(f"{prefix}{name}_count", ()))
            if count:
                return Mean(sum(samples.get(f"{prefix}{name}_sum", ())), count)
        return Mean(0.0, 0.0)

    generated, prompts = summed("generated_tokens"), summed("prompt_tokens")
    if not generated and not prompts:
        raise InputError(f"{path}: counts no tokens; give metrics of a server that has answered requests")
    requests = mean("prompt_length").observations or mean("ttft").observations or summed("requests") or 0.0
    prompt = mean("prompt_length").value or (prompts / requests if prompts and requests else None)
    output = mean("output_length").value or (generated / requests if generated and requests else None)
    steps = mean("step_tokens").observations or None
    batch = generated / steps if steps and generated else summed("running") or None
    cached, ops, read, written = map(summed, ("cached_tokens", "ops", "read_bytes", "written_bytes"))
    usage = [value for name in data["gauges"]["cache_usage"] for value in samples.get(prefix + name, ())]
    return ServerLoad(
        **_about(engine),
        steps=steps,
        batch=batch,
        prompt=prompt,
        cached=min(cached / prompts, 1.0) if cached is not None and prompts else None,
        output=output,
        context=prompt + output / 2 if prompt and output else None,
        token_s=mean("token_time").value,
        ttft_s=mean("ttft").value,
        queue_s=mean("queue_time").value,
        running=summed("running"),
        waiting=summed("waiting"),
        cache_usage=sum(usage) / len(usage) if usage else None,
        preemptions=summed("preemptions"),
        ops=ops / steps if ops and steps else None,
        bytes=(read + written) / steps if read and written and steps else None,
    )


def _of_log(engine: str, text: str) -> ServerLoad:
    """The steps of a log by kind; steps that ran nothing are left out."""
    steps = [
        step
        for pattern in _engines()[engine]["steps"]
        for match in re.finditer(pattern, text)
        if (step := _logged_step(match.groupdict()))
    ]
    decode = tuple(step for step in steps if step.decodes and not step.prompts)
    mixed = tuple(step for step in steps if step.decodes and step.prompts)
    prefill = tuple(step for step in steps if step.prompts and not step.decodes)
    prompts = sum(step.prompts for step in steps)
    contexts = [(step.context_tokens, step.decodes) for step in decode if step.context_tokens is not None]
    return ServerLoad(
        **_about(engine),
        steps=float(len(steps)),
        batch=_mean(step.decodes for step in (*decode, *mixed)),
        prompt=sum(step.prompt_tokens for step in steps) / prompts if prompts else None,
        context=sum(tokens for tokens, _ in contexts) / sum(number for _, number in contexts) if contexts else None,
        token_s=_mean(step.time_s for step in (*decode, *mixed)),
        decode_steps=decode,
        mixed_steps=mixed,
        prefill_steps=prefill,
    )


def _logged_step(groups: Mapping[str, str | None]) -> LoggedStep | None:
    """A step from the groups of a line's pattern; None if it ran nothing or has no time."""
    numbers = {name: float(text) for name, text in groups.items() if text is not None}
    decodes = numbers["decodes"]
    if "tokens_per_s" in numbers:
        time_s = decodes / numbers["tokens_per_s"] if numbers["tokens_per_s"] else 0.0
    else:
        time_s = 1e-3 * numbers["milliseconds"]
    prompts = numbers.get("prompts", 0.0)
    if not time_s or not (decodes or prompts) or max(numbers.values()) > _MAX_VALUE:
        return None
    context = numbers.get("context_tokens")
    return LoggedStep(
        prompts=int(prompts), prompt_tokens=int(numbers.get("prompt_tokens", 0.0)), decodes=int(decodes),
        time_s=time_s, context_tokens=None if context is None else int(context),
    )  # fmt: skip


def _about(engine: str) -> dict[str, Any]:
    data = _engines()[engine]
    return {"engine": engine, "title": data["title"], "versions": str(data["versions"]), "profile": data["profile"]}


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None
