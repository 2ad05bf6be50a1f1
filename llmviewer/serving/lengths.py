"""Distributions of input and output lengths, in whole tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, log, sqrt
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ..documents import path_exists, read_text
from ..errors import InputError
from ..records import frozen

Tokens = npt.NDArray[np.int64]

_NORMAL: Final = {50: 0.0, 90: 1.2815515655446004, 95: 1.6448536269514722, 99: 2.3263478740408408}  # quantiles
MAX_TOKENS: Final = 1 << 24  # of a prompt or an output
_MAX_DIGITS: Final = 1000  # of a number, with leading zeros; int() refuses more than 4300


@frozen(kw_only=True)
class Published:
    """Published lengths of a data set: median and 90th percentile. [tokens]"""

    prompt: tuple[int, int]
    gen: tuple[int, int]
    source: str


# From tables of two papers on schedulers. Azure (arXiv:2311.18677, arXiv:2408.00741), BurstGPT (arXiv:2401.17644) and
# Mooncake (arXiv:2407.00079) publish traces instead of two percentiles.
PUBLISHED: Final = {
    "sharegpt4": Published(
        prompt=(1730, 5696), gen=(415, 834), source="arXiv:2403.02310, table 2: openchat_sharegpt4, up to 8192 tokens"
    ),
    "arxiv": Published(
        prompt=(7059, 12985), gen=(208, 371),
        source="arXiv:2403.02310, table 2: arxiv_summarization, up to 16384 tokens",
    ),
    "lmsys-chat": Published(
        prompt=(417, 1678), gen=(139, 484), source="Vidur (arXiv:2405.05465): LMSys-Chat-1M, up to 4096 tokens"
    ),
    "translation": Published(
        prompt=(1037, 1453), gen=(1601, 2149), source="Vidur (arXiv:2405.05465): Bilingual-Web-Book, up to 4096 tokens"
    ),
}  # fmt: skip
_COUNTS: Final = {"session_turns": "turns", "parallel": "calls"}  # arguments that are no lengths, with what they count
_OUTPUTS: Final = ("gen_lengths", "gen")  # arguments that are output lengths; "gen" of a call in a file of tasks
_NOTATION: Final = (
    "must be a number of tokens, uniform:LEAST-MOST, lognormal:KEY=TOKENS,KEY=TOKENS with two of mean, p50, p90, p95 "
    f"and p99, one of {', '.join(PUBLISHED)}, or the name of a text file with one length a line"
)


@frozen(kw_only=True)
class Lengths:
    """A distribution of lengths. [tokens]

    mean  mean before rounding
    draw  returns independent lengths of at least 1
    """

    mean: float
    draw: Callable[[np.random.Generator, int], Tokens]


def _constant(tokens: int) -> Lengths:
    return Lengths(mean=float(tokens), draw=lambda _, count: np.full(count, tokens, dtype=np.int64))


def _uniform(minimum: int, maximum: int) -> Lengths:
    """Uniform lengths from `minimum` to `maximum`, both included."""
    return Lengths(
        mean=(minimum + maximum) / 2,
        draw=lambda generator, count: generator.integers(minimum, maximum, count, endpoint=True),
    )


def _normal_logarithms(location: float, scale: float) -> Lengths:
    """Lognormal lengths: exp(location) is the median, `scale` the standard deviation of the logarithm."""

    def draw(generator: np.random.Generator, count: int) -> Tokens:
        drawn = np.rint(generator.lognormal(location, scale, size=count))
        return np.clip(drawn, 1, MAX_TOKENS).astype(np.int64)

    return Lengths(mean=exp(location + scale**2 / 2), draw=draw)


def _resampled(lengths: Sequence[int]) -> Lengths:
    """Lengths drawn at random from a sample."""
    samples = np.array(lengths, dtype=np.int64)
    return Lengths(mean=float(np.mean(samples)), draw=lambda generator, count: generator.choice(samples, size=count))


def parse_lengths(text: str, name: str, *, reads_files: bool = True) -> Lengths:
    """Parses "512", "uniform:100-900", "lognormal:mean=512,p95=2048", a name in PUBLISHED, or the path of a file with
    one length per line.

    name         name of the argument, for messages
    reads_files  whether it may be a path; not for texts of strangers

    Raises InputError if the text is none of these.
    """
    if not isinstance(text, str) or not text.strip():
        raise _notation_error(text, name)
    kind, colon, arguments = text.strip().partition(":")
    if not colon and kind in PUBLISHED and name not in _COUNTS:
        percentiles = PUBLISHED[kind]
        p50, p90 = percentiles.gen if name in _OUTPUTS else percentiles.prompt
        return _by_quantiles({"p50": p50, "p90": p90}, text, name)
    if not colon:
        if kind.lstrip("-").replace(".", "", 1).isdigit():
            return _constant(_parse_tokens(kind, text, name))
        if reads_files and (Path(kind).suffix or path_exists(kind)):
            return _file(Path(kind), name)
    if kind == "uniform":
        minimum, _, maximum = (part.strip() for part in arguments.partition("-"))
        ends = _parse_tokens(minimum, text, name), _parse_tokens(maximum, text, name)
        if ends[1] < ends[0]:
            raise _notation_error(text, name)
        return _uniform(*ends)
    if kind == "lognormal":
        return _lognormal(arguments, text, name)
    raise _notation_error(text, name)


def _lognormal(arguments: str, text: str, name: str) -> Lengths:
    numbers: dict[str, float] = {}
    for assignment in arguments.split(","):
        key, _, value = (piece.strip() for piece in assignment.partition("="))
        try:
            number = float(value)
        except ValueError:
            raise _notation_error(text, name) from None
        if key in numbers or (key != "mean" and key not in {f"p{q}" for q in _NORMAL}) or not 1 <= number <= MAX_TOKENS:
            raise _notation_error(text, name)
        numbers[key] = number
    if len(numbers) != 2:
        raise _notation_error(text, name)
    mean = numbers.pop("mean", 0.0)
    return _by_mean(mean, numbers, text, name) if mean else _by_quantiles(numbers, text, name)


def _by_quantiles(numbers: Mapping[str, float], text: str, name: str) -> Lengths:
    (z0, low), (z1, high) = sorted((_NORMAL[int(key[1:])], value) for key, value in numbers.items())
    scale = (log(high) - log(low)) / (z1 - z0)
    if scale <= 0:
        raise InputError(f"{name}: in {text!r} a higher percentile must be a greater length")
    return _normal_logarithms(log(low) - z0 * scale, scale)


def _by_mean(mean: float, numbers: Mapping[str, float], text: str, name: str) -> Lengths:
    """The smaller root of log quantile = log mean - scale^2 / 2 + z scale, which falls to 0 with their distance."""
    ((key, value),) = numbers.items()
    z, distance = _NORMAL[int(key[1:])], log(value / mean)
    if not 0 < distance <= z * z / 2 and z:
        limit = mean * exp(z * z / 2)
        raise InputError(
            f"{name}: in {text!r} {key} must be above the mean, and {limit:.0f} at most; or give two percentiles"
        )
    if not z and distance >= 0:
        raise InputError(f"{name}: in {text!r} p50 must be below the mean; or give two percentiles")
    scale = z - sqrt(z * z - 2 * distance) if z else sqrt(-2 * distance)
    return _normal_logarithms(log(mean) - scale**2 / 2, scale)


def _file(path: Path, name: str) -> Lengths:
    lengths: list[int] = []
    for number, line in enumerate(map(str.strip, read_text(path).splitlines()), 1):
        if not line:
            continue
        length = parse_count(line)
        if length is None:
            raise InputError(f"{path}:{number}: must be a length from 1 to {MAX_TOKENS}; got {line!r}")
        lengths.append(length)
    if not lengths:
        raise InputError(f"{path}: {name}: has no lengths; write one per line")
    return _resampled(lengths)


def parse_count(digits: str, minimum: int = 1) -> int | None:
    """Parses a number of tokens; None unless it is a whole number from `minimum` to MAX_TOKENS."""
    if not digits.isdecimal() or len(digits) > _MAX_DIGITS:
        return None
    tokens = int(digits)
    return tokens if minimum <= tokens <= MAX_TOKENS else None


def _parse_tokens(digits: str, text: str, name: str) -> int:
    tokens = parse_count(digits)
    if tokens is None:
        raise _notation_error(text, name)
    return tokens


def _notation_error(text: object, name: str) -> InputError:
    must = f"{_NOTATION}, of 1 to {MAX_TOKENS} tokens"
    if name in _COUNTS:
        unit = _COUNTS[name]
        must = (
            f"must be a number of {unit}, uniform:LEAST-MOST or lognormal:KEY=NUMBER,KEY=NUMBER with two of mean, p50, "
            f"p90, p95 and p99, of 1 to {MAX_TOKENS} {unit}"
        )
    return InputError(f"{name}: {must}; got {text!r}")
