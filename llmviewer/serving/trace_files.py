"""Requests read from files: tables, and traces in JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from io import StringIO
from itertools import takewhile
from math import isfinite
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from ..documents import read_text
from ..errors import InputError
from .lengths import MAX_TOKENS, parse_count
from .traffic import TRACE_BLOCK_TOKENS, Traffic

_CACHED: Final = "cached"  # the optional column
_TRACE_SUFFIX: Final = ".jsonl"

# Names of columns: ours, those of Azure's traces (github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md
# and ...2024.md; CC-BY) and of BurstGPT (github.com/HPMLL/BurstGPT). OpenAI's API and engines report cached_tokens.
_COLUMNS: Final = {
    "timestamp": ("timestamp", "arrival_s", "arrived_at"),
    "prompt": ("prompt", "contexttokens", "request tokens", "prompt_tokens"),
    "gen": ("gen", "generatedtokens", "response tokens", "output_tokens"),
    _CACHED: ("cached", "cached_tokens", "num_cached_tokens"),
}


_MOONCAKE_FIELDS: Final = {
    "timestamp": "timestamp",
    "prompt": "input_length",
    "gen": "output_length",
}  # in Mooncake's traces


class _TraceRow(NamedTuple):
    time_s: float
    prompt: int
    gen: int
    cached: int
    blocks: tuple[int, ...] = ()


class _TraceLine(NamedTuple):
    """A row: its location in the file, texts by column, and blocks of its prompt."""

    where: str
    texts: Mapping[str, str]
    blocks: tuple[int, ...] = ()


def read_traffic(path: Path, max_rows: int | None = None) -> Traffic:
    """Reads the first `max_rows` requests of a trace by time; simultaneous ones keep the order of the file.

    A CSV file has columns timestamp (seconds, or dates as in Azure's traces), prompt, gen and optionally cached; a
    .jsonl file has the fields of Mooncake's traces. Requests without output tokens, such as those that failed in
    BurstGPT's, are counted and ignored.

    Raises InputError, with the line, for an invalid row.
    """
    lines = list(_lines(path) if path.suffix.lower() == _TRACE_SUFFIX else _table(path))
    all_rows = [_row(line) for line in lines]
    generating = sorted((row for row in all_rows if row.gen > 0), key=lambda row: row.time_s)
    rows = generating[:max_rows]
    if not rows:
        raise InputError(f"{path}: has no request with output tokens")
    *columns, blocks = zip(*rows, strict=True)
    arrival, prompt, gen, cached = map(np.array, columns)
    return Traffic(
        arrival_s=arrival - arrival[0], prompt=prompt, gen=gen,
        empty=len(all_rows) - len(generating), later=len(generating) - len(rows),
        cached=np.minimum(cached, prompt - 1) if any(_CACHED in line.texts for line in lines) else None,
        blocks=blocks if any(blocks) else None,
    )  # fmt: skip


def _table(path: Path) -> Iterator[_TraceLine]:
    reader = csv.DictReader(StringIO(read_text(path)))
    names = {name.strip().lower(): name for name in reader.fieldnames or ()}
    columns = {}
    for key, aliases in _COLUMNS.items():
        header = next((names[name] for name in aliases if name in names), None)
        if header is not None:
            columns[key] = header
        elif key != _CACHED:
            raise InputError(f"{path}: {key}: must be a column of the header, which has {', '.join(names) or 'none'}")
    for row in reader:
        texts = {key: (row[column] or "").strip() for key, column in columns.items()}
        yield _TraceLine(f"{path}:{reader.line_num}", texts)


def _lines(path: Path) -> Iterator[_TraceLine]:
    """Rows of a JSON Lines trace. Blocks of earlier prompts count as cached, as if none were ever evicted."""
    cached_ids: set[object] = set()
    for number, text in enumerate(read_text(path).splitlines(), 1):
        if not text.strip():
            continue
        where = f"{path}:{number}"
        line = _object(text, where)
        texts = {key: str(line.get(name, "")) for key, name in _MOONCAKE_FIELDS.items()}
        ids = line.get("hash_ids")
        if ids is not None:
            if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
                raise InputError(f"{where}: hash_ids must be a list of whole numbers; got {ids!r}")
            hit = TRACE_BLOCK_TOKENS * sum(1 for _ in takewhile(cached_ids.__contains__, ids))
            cached_ids.update(ids)
            tokens = parse_count(texts["prompt"], 1) or 0  # the last block may not be full
            texts[_CACHED] = str(min(hit, tokens))
        yield _TraceLine(where, texts | {"timestamp": _seconds(texts["timestamp"], where)}, tuple(ids or ()))


def _object(text: str, where: str) -> Mapping[str, object]:
    try:
        line = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        line = None
    if not isinstance(line, dict):
        raise InputError(f"{where}: must be an object in JSON; got {text[:40]!r}")
    return line


def _seconds(milliseconds: str, where: str) -> str:
    try:
        return repr(float(milliseconds) / 1000)
    except ValueError:
        raise InputError(f"{where}: timestamp must be milliseconds; got {milliseconds!r}") from None


def _row(line: _TraceLine) -> _TraceRow:
    where, texts, blocks = line
    numbers = {_CACHED: 0}
    for name, minimum in (("prompt", 1), ("gen", 0), (_CACHED, 0)):
        if name in texts:
            number = parse_count(texts[name], minimum)
            if number is None:
                must = f"must be a whole number from {minimum} to {MAX_TOKENS}"
                raise InputError(f"{where}: {name} {must}; got {texts[name]!r}")
            numbers[name] = number
    if numbers[_CACHED] > numbers["prompt"]:
        limit = f"the {numbers['prompt']} tokens of the prompt"
        raise InputError(f"{where}: {_CACHED} must be at most {limit}; got {numbers[_CACHED]}")
    return _TraceRow(time_s=_time(texts["timestamp"], where), blocks=blocks, **numbers)


def _time(stamp: str, where: str) -> float:
    """Seconds of a timestamp, or of a date since 1970; UTC without a zone, as it has no daylight saving."""
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
