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
LONGEST: Final = 1 << 24  # tokens of a request
_DIGITS: Final = 1000  # of a number, zeros before it included: Python refuses to read many thousands


@frozen(kw_only=True)
class Published:
    """Published lengths of a data set: median and 90th percentile. [tokens]"""

    prompt: tuple[int, int]
    gen: tuple[int, int]
    source: str


# Tables of two papers on schedulers. Of the traces of Azure (arXiv:2311.18677, arXiv:2408.00741), BurstGPT (arXiv:
# 2401.17644) and Mooncake (arXiv:2407.00079) no two percentiles were found, but the requests themselves are published.
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
_NOTATION: Final = (
    "must be a number of tokens, uniform:LEAST-MOST, lognormal:KEY=TOKENS,KEY=TOKENS with two of mean, p50, p90, p95 "
    f"and p99, one of {', '.join(PUBLISHED)}, or the name of a text file with one length a line"
)


@frozen(kw_only=True)
class Lengths:
    """A distribution of lengths. [tokens]

    mean  before rounding
    draw  gives independent lengths, at least 1
    """

    mean: float
    draw: Callable[[np.random.Generator, int], Tokens]


def _constant(tokens: int) -> Lengths:
    return Lengths(mean=float(tokens), draw=lambda _, count: np.full(count, tokens, dtype=np.int64))


def _uniform(least: int, most: int) -> Lengths:
    """Uniform lengths from `least` to `most`, both included."""
    return Lengths(
        mean=(least + most) / 2, draw=lambda generator, count: generator.integers(least, most, count, endpoint=True)
    )


def _normal_logarithms(location: float, scale: float) -> Lengths:
    """Lognormal lengths: exp(location) is the median, `scale` the standard deviation of the logarithm."""

    def draw(generator: np.random.Generator, count: int) -> Tokens:
        drawn = np.rint(generator.lognormal(location, scale, size=count))
        return np.clip(drawn, 1, LONGEST).astype(np.int64)

    return Lengths(mean=exp(location + scale**2 / 2), draw=draw)


def _seen(lengths: Sequence[int]) -> Lengths:
    """A random one of given lengths."""
    those = np.array(lengths, dtype=np.int64)
    return Lengths(mean=float(np.mean(those)), draw=lambda generator, count: generator.choice(those, size=count))


def parse_lengths(text: str, name: str) -> Lengths:
    """Read "512", "uniform:100-900", "lognormal:mean=512,p95=2048", a name in PUBLISHED or the path of a file with one
    length a line.

    name  of the argument, for messages

    Raises InputError if the text is none of these.
    """
    if not isinstance(text, str) or not text.strip():
        raise _wrong(text, name)
    kind, colon, given = text.strip().partition(":")
    if not colon and kind in PUBLISHED:
        known = PUBLISHED[kind]
        middle, long = known.gen if name == "gen_lengths" else known.prompt
        return _by_quantiles({"p50": middle, "p90": long}, text, name)
    if not colon:
        if kind.lstrip("-").replace(".", "", 1).isdigit():
            return _constant(_whole(kind, text, name))
        if Path(kind).suffix or path_exists(kind):
            return _file(Path(kind), name)
    if kind == "uniform":
        least, _, most = (part.strip() for part in given.partition("-"))
        ends = _whole(least, text, name), _whole(most, text, name)
        if ends[1] < ends[0]:
            raise _wrong(text, name)
        return _uniform(*ends)
    if kind == "lognormal":
        return _lognormal(given, text, name)
    raise _wrong(text, name)


def _lognormal(given: str, text: str, name: str) -> Lengths:
    numbers: dict[str, float] = {}
    for part in given.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        try:
            number = float(value)
        except ValueError:
            raise _wrong(text, name) from None
        if key in numbers or (key != "mean" and key not in {f"p{q}" for q in _NORMAL}) or not 1 <= number <= LONGEST:
            raise _wrong(text, name)
        numbers[key] = number
    if len(numbers) != 2:
        raise _wrong(text, name)
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
        most = mean * exp(z * z / 2)
        raise InputError(
            f"{name}: in {text!r} {key} must be above the mean, and {most:.0f} at most; or give two percentiles"
        )
    if not z and distance >= 0:
        raise InputError(f"{name}: in {text!r} p50 must be below the mean; or give two percentiles")
    scale = z - sqrt(z * z - 2 * distance) if z else sqrt(-2 * distance)
    return _normal_logarithms(log(mean) - scale**2 / 2, scale)


def _file(path: Path, name: str) -> Lengths:
    seen: list[int] = []
    for number, line in enumerate(map(str.strip, read_text(path).splitlines()), 1):
        if not line:
            continue
        found = counted(line)
        if found is None:
            raise InputError(f"{path}:{number}: must be a length from 1 to {LONGEST}; got {line!r}")
        seen.append(found)
    if not seen:
        raise InputError(f"{path}: {name}: holds no length; give one a line")
    return _seen(seen)


def counted(digits: str, least: int = 1) -> int | None:
    """A number of tokens from text; None unless it is a whole number from `least` to LONGEST."""
    if not digits.isdecimal() or len(digits) > _DIGITS:
        return None
    return found if least <= (found := int(digits)) <= LONGEST else None


def _whole(digits: str, text: str, name: str) -> int:
    found = counted(digits)
    if found is None:
        raise _wrong(text, name)
    return found


def _wrong(text: object, name: str) -> InputError:
    return InputError(f"{name}: {_NOTATION}, of 1 to {LONGEST} tokens; got {text!r}")
