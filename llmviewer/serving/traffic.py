"""Requests: when each arrives, what it brings and what is written for it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import StringIO
from math import inf, isfinite, nan
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ..documents import read_text
from ..errors import InputError
from .lengths import LONGEST, Lengths, Tokens, counted
from .progress import Progress

Times = npt.NDArray[np.float64]

_DRAWN: Final = 1  # beside the seed, for what is drawn of answers: others than arrivals and lengths

_CACHED: Final = "cached"  # the column that a file need not have

# Names of the columns of a file: ours, and those of the traces that Azure published (github.com/Azure/
# AzurePublicDataset, AzureLLMInferenceDataset2023.md and ...2024.md; CC-BY), and of BurstGPT (github.com/HPMLL/
# BurstGPT); cached_tokens are so called in what OpenAI's interface and engines report.
_COLUMNS: Final = {
    "timestamp": ("timestamp", "arrival_s", "arrived_at"),
    "prompt": ("prompt", "contexttokens", "request tokens", "prompt_tokens"),
    "gen": ("gen", "generatedtokens", "response tokens", "output_tokens"),
    _CACHED: ("cached", "cached_tokens", "num_cached_tokens"),
}


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Requests in the order of their arrival.

    arrival_s  when each arrives, the first at 0 or later [s]
    prompt     tokens that each brings
    gen        tokens that are written for each, of which its prefill gives the first
    empty      rows of the file that generate nothing, and are not among them
    cached     tokens of each prompt that are in a cache before it is read, where a file says so
    drafted    how their answers grow, where a pass may give several tokens
    """

    arrival_s: Times
    prompt: Tokens
    gen: Tokens
    empty: int = 0
    cached: Tokens | None = None
    drafted: Progress | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def rate(self) -> float:
        """Requests over the time in which they arrive; inf where all come at once. [1/s]"""
        span = float(self.arrival_s[-1])
        return len(self) / span if span > 0 else inf

    @property
    def progress(self) -> Progress:
        """How their answers grow."""
        return self.drafted or Progress.even(self.gen)

    @property
    def tokens_per_step(self) -> float:
        """That each decode step leaves of a sequence, on average; nan where there is none."""
        steps = float(np.sum(self.progress.passes)) - len(self)
        return (float(np.sum(self.gen)) - len(self)) / steps if steps else nan

    def leaving(self, leaves: Sequence[float], seed: int) -> Traffic:
        """The same where each pass leaves at least 1, 2, ... tokens as likely as `leaves` says."""
        if len(leaves) == 1:
            return self
        generator = np.random.default_rng((seed, _DRAWN))
        return replace(self, drafted=Progress.drawn(self.gen, leaves, generator))

    def only(self, which: npt.NDArray[np.intp]) -> Traffic:
        """Some of them."""
        return Traffic(
            arrival_s=self.arrival_s[which], prompt=self.prompt[which], gen=self.gen[which],
            cached=None if self.cached is None else self.cached[which],
            drafted=self.drafted and self.drafted.only(which),
        )  # fmt: skip


def poisson(*, rate: float, prompts: Lengths, gens: Lengths, requests: int, generator: np.random.Generator) -> Traffic:
    """`requests` that come at random over as long as so many take at `rate` a second. Without that, a rate near what is
    served at most may be drawn beyond it.
    """
    moments = np.cumsum(generator.exponential(size=requests))
    return Traffic(
        arrival_s=moments * (requests / rate / moments[-1]),
        prompt=prompts.draw(generator, requests),
        gen=gens.draw(generator, requests),
    )


def read_traffic(path: Path, most: int | None = None) -> Traffic:
    """The first `most` rows of a CSV file with columns timestamp (seconds, or dates as in Azure's traces), prompt, gen,
    and cached where it has that. Those of one time stay in the order of the file.

    Requests that generate nothing, as those that failed in BurstGPT's, are counted and left out.

    Raises InputError, with its line, where a row is wrong.
    """
    reader = csv.DictReader(StringIO(read_text(path)))
    names = {name.strip().lower(): name for name in reader.fieldnames or ()}
    columns = {}
    for key, known in _COLUMNS.items():
        found = next((names[name] for name in known if name in names), None)
        if found is None and key == _CACHED:
            continue
        if found is None:
            raise InputError(f"{path}: {key}: must be a column of the header, which has {', '.join(names) or 'none'}")
        columns[key] = found
    every = [_row(row, columns, f"{path}:{reader.line_num}") for row in reader]
    rows = sorted((row for row in every if row[2] > 0), key=lambda row: row[0])[:most]
    if not rows:
        raise InputError(f"{path}: holds no request that generates anything")
    arrival, prompt, gen, cached = (np.array(column) for column in zip(*rows, strict=True))
    return Traffic(
        arrival_s=arrival - arrival[0], prompt=prompt, gen=gen, empty=sum(row[2] == 0 for row in every),
        cached=np.minimum(cached, prompt - 1) if _CACHED in columns else None,
    )  # fmt: skip


def _row(row: Mapping[str, str | None], columns: Mapping[str, str], where: str) -> tuple[float, int, int, int]:
    texts = {key: (row[column] or "").strip() for key, column in columns.items()}
    numbers = {_CACHED: 0}
    for name, least in (("prompt", 1), ("gen", 0), (_CACHED, 0)):
        if name in texts:
            number = counted(texts[name], least)
            if number is None:
                must = f"must be a whole number from {least} to {LONGEST}"
                raise InputError(f"{where}: {name} {must}; got {texts[name]!r}")
            numbers[name] = number
    if numbers[_CACHED] > numbers["prompt"]:
        of = f"the {numbers['prompt']} tokens of the prompt"
        raise InputError(f"{where}: {_CACHED} must be at most {of}; got {numbers[_CACHED]}")
    return _time(texts["timestamp"], where), numbers["prompt"], numbers["gen"], numbers[_CACHED]


def _time(stamp: str, where: str) -> float:
    """Seconds, or a date in seconds since 1970; one that names no zone is in UTC, where no hour comes twice a year."""
    try:
        seconds = float(stamp)
    except ValueError:
        try:
            date = datetime.fromisoformat(stamp)
        except ValueError:
            raise InputError(f"{where}: timestamp must be seconds or a date and time; got {stamp!r}") from None
        seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    if not isfinite(seconds):
        raise InputError(f"{where}: timestamp must be finite; got {stamp!r}")
    return seconds
