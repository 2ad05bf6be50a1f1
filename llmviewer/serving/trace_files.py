"""Requests read from files: tables, and traces in JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from io import StringIO
from itertools import takewhile
from math import isfinite
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from ..documents import read_text
from ..errors import InputError
from .calls import with_repeated_conversations
from .lengths import MAX_TOKENS, parse_count
from .traffic import TRACE_BLOCK_TOKENS, Calls, Traffic

_CACHED, _SESSION, _TENANT = "cached", "session", "tenant"  # the optional columns
_TRACE_SUFFIX: Final = ".jsonl"
_MAX_DELAY_MS: Final = 1e9

# Names of columns: ours, those of Azure's traces (github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md
# and ...2024.md; CC-BY) and of BurstGPT (github.com/HPMLL/BurstGPT). OpenAI's API and engines report cached_tokens.
_COLUMNS: Final = {
    "timestamp": ("timestamp", "arrival_s", "arrived_at"),
    "prompt": ("prompt", "contexttokens", "request tokens", "prompt_tokens"),
    "gen": ("gen", "generatedtokens", "response tokens", "output_tokens"),
    _CACHED: ("cached", "cached_tokens", "num_cached_tokens"),
    _SESSION: ("session", "session_id", "session id", "sessionid"),
    _TENANT: ("tenant",),
}
_OPTIONAL: Final = (_CACHED, _SESSION, _TENANT)
_SAME_NAME: Final = 0.85  # least similarity of a misspelled column
_QWEN_BLOCK_TOKENS: Final = 16  # per hash_id of Qwen-Bailian's (github.com/alibaba-edu/qwen-bailian-usagetraces-anon)

_MOONCAKE_FIELDS: Final = {
    "timestamp": "timestamp",
    "prompt": "input_length",
    "gen": "output_length",
}  # in Mooncake's traces


class _Call(NamedTuple):
    """A request of a session or task.

    name     its name, by which others wait for it
    parents  names of requests before it in the file, whose answers it waits for
    delay_s  time from the last of these answers to the request; None: it comes at its timestamp, or with that answer
    kind     "session" or "task"
    """

    name: object
    parents: tuple[object, ...]
    delay_s: float | None
    kind: str


class _TraceRow(NamedTuple):
    time_s: float
    prompt: int
    gen: int
    cached: int
    tenant: str
    blocks: tuple[int, ...] = ()
    call: _Call | None = None


class _TraceLine(NamedTuple):
    """A row: its location in the file, texts by column, blocks of its prompt, and the requests that it waits for."""

    where: str
    texts: Mapping[str, str]
    blocks: tuple[int, ...] = ()
    call: _Call | None = None
    block_tokens: int = TRACE_BLOCK_TOKENS


def read_traffic(path: Path, max_rows: int | None = None) -> Traffic:
    """Reads the first `max_rows` requests of a trace by time; simultaneous ones keep the order of the file, and so do
    all if there are sessions.

    A CSV file has columns timestamp (seconds, or dates as in Azure's traces), prompt, gen and optionally cached and
    session and tenant; a .jsonl file has the fields of Mooncake's traces, Dynamo's agentic ones or Qwen-Bailian's.
    Requests without output tokens, such as those that failed in BurstGPT's, are counted and ignored.

    Raises InputError, with the line, for an invalid row.
    """
    lines = list(_lines(path) if path.suffix.lower() == _TRACE_SUFFIX else _table(path))
    all_rows = [_row(line) for line in lines]
    generating = [row for row in all_rows if row.gen > 0]
    if not any(row.call for row in all_rows):
        generating.sort(key=lambda row: row.time_s)
    rows = generating[:max_rows]
    if not rows:
        raise InputError(f"{path}: has no request with output tokens")
    arrival, prompt, gen, cached = (np.array([row[i] for row in rows]) for i in range(4))
    blocks = tuple(row.blocks for row in rows)
    tenants = (
        np.unique([row.tenant for row in rows], return_inverse=True)
        if any(_TENANT in line.texts for line in lines)
        else None
    )
    first_s = min(row.time_s for row in rows if not (row.call and row.call.parents))
    calls = _calls(all_rows, rows) if any(row.call for row in rows) else None
    traffic = Traffic(
        arrival_s=np.maximum(arrival - first_s, 0.0), prompt=prompt, gen=gen,
        empty=len(all_rows) - len(generating), later=len(generating) - len(rows),
        cached=np.minimum(cached, prompt - 1) if any(_CACHED in line.texts for line in lines) else None,
        blocks=blocks if any(blocks) else None, ends=lines[0].block_tokens, calls=calls,
        tenants=tenants and tenants[1], tenant_names=tuple(map(str, tenants[0])) if tenants else (),
    )  # fmt: skip
    return with_repeated_conversations(traffic) if calls and traffic.cached is None else traffic


def _calls(all_rows: Sequence[_TraceRow], rows: Sequence[_TraceRow]) -> Calls:
    """Dependencies between the rows; those of rows without output tokens pass on to the rows that wait for them."""
    place = {id(row): at for at, row in enumerate(rows)}
    by_name: dict[object, tuple[int, ...]] = {}  # rows that an answer comes from
    parents, task_of, delays = [], list(range(len(rows))), []

    def first(at: int) -> int:
        while task_of[at] != at:
            task_of[at] = task_of[task_of[at]]
            at = task_of[at]
        return at

    for row in all_rows:
        call = row.call or _Call(object(), (), None, "")
        answers = tuple(dict.fromkeys(at for name in call.parents for at in by_name.get(name, ())))
        index = place.get(id(row))
        by_name[call.name] = answers if index is None else (index,)
        if index is not None:
            parents.append(answers)
            delays.append(call.delay_s or 0.0 if answers else 0.0)
            for parent in answers:
                earlier, later = sorted((first(parent), first(index)))
                task_of[later] = earlier
    _, task = np.unique([first(at) for at in range(len(rows))], return_inverse=True)
    kind = next(row.call.kind for row in rows if row.call)
    return Calls(kind=kind, task=task, parents=tuple(parents), delay_s=np.array(delays))


def _table(path: Path) -> Iterator[_TraceLine]:
    reader = csv.DictReader(StringIO(read_text(path)))
    names = {name.strip().lower(): name for name in reader.fieldnames or ()}
    columns = {}
    for key, aliases in _COLUMNS.items():
        header = next((names[name] for name in aliases if name in names), None)
        if header is not None:
            columns[key] = header
        elif key not in _OPTIONAL:
            raise InputError(f"{path}: {key}: must be a column of the header, which has {', '.join(names) or 'none'}")
    _check_spelling(path, names.keys() - {alias for aliases in _COLUMNS.values() for alias in aliases})
    last: dict[str, object] = {}  # request of each session
    for row in reader:
        texts = {key: (row[column] or "").strip() for key, column in columns.items()}
        call = _next_turn(last, session, None) if (session := texts.get(_SESSION)) else None
        yield _TraceLine(f"{path}:{reader.line_num}", texts, call=call)


def _check_spelling(path: Path, unread: Iterable[str]) -> None:
    """Raises InputError for a column that is not read, and whose name resembles that of an optional one."""
    for name in sorted(unread):
        similar = get_close_matches(name, _OPTIONAL, n=1, cutoff=_SAME_NAME)
        if similar:
            raise InputError(f"{path}: {name}: unknown column; did you mean {similar[0]}? Else give it another name")


def _next_turn(last: dict[str, object], session: str, delay_s: float | None) -> _Call:
    """The next request of a session, given the `last` request of each."""
    parents = (last[session],) if session in last else ()
    last[session] = object()
    return _Call(last[session], parents, delay_s, "session")


def _lines(path: Path) -> Iterator[_TraceLine]:
    """Rows of a JSON Lines trace. Blocks of earlier prompts count as cached, as if none were ever evicted."""
    cached_ids: set[object] = set()
    last: dict[str, object] = {}
    names: set[object] = set()
    for number, text in enumerate(read_text(path).splitlines(), 1):
        if not text.strip():
            continue
        where = f"{path}:{number}"
        line = _object(text, where)
        texts = {key: str(line.get(name, "")) for key, name in _MOONCAKE_FIELDS.items()}
        call = _call(line, where, last, names)
        qwen = "chat_id" in line
        block_tokens = _QWEN_BLOCK_TOKENS if qwen else TRACE_BLOCK_TOKENS
        if call and call.parents and call.delay_s is not None:
            texts["timestamp"] = "0"
        ids = line.get("hash_ids")
        if ids is not None:
            if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
                raise InputError(f"{where}: hash_ids must be a list of whole numbers; got {ids!r}")
            hit = block_tokens * sum(1 for _ in takewhile(cached_ids.__contains__, ids))
            cached_ids.update(ids)
            tokens = parse_count(texts["prompt"], 1) or 0  # the last block may not be full
            texts[_CACHED] = str(min(hit, tokens))
        if not qwen:
            texts["timestamp"] = _seconds(texts["timestamp"], where)
        yield _TraceLine(where, texts, tuple(ids or ()), call, block_tokens)


def _call(line: Mapping[str, object], where: str, last: dict[str, object], names: set[object]) -> _Call | None:
    """The request of a session or task in a line; None for one by itself.

    Qwen-Bailian's have chat_id and parent_chat_id, -1 for none or before the trace. Dynamo's agentic ones have
    request_id, wait_for, delay and tool_wait_ms [ms] (dynamo-data-gen, AgenticMooncakeRow), others a session_id, whose
    requests follow each other, and maybe a delay [ms].

    last   last request of each session
    names  names of requests in the lines before, to which that of this line is added
    """
    milliseconds = [line[key] for key in ("delay", "tool_wait_ms") if line.get(key) is not None]
    for value in milliseconds:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MAX_DELAY_MS:
            raise InputError(f"{where}: delay must be 0 to {_MAX_DELAY_MS:g} ms; got {value!r}")
    delay_s = sum(map(float, milliseconds)) / 1000 if milliseconds else None  # type: ignore[arg-type]
    if "chat_id" in line:
        name, parent = line["chat_id"], line.get("parent_chat_id", -1)
        if not isinstance(parent, str | int):
            raise InputError(f"{where}: parent_chat_id must be a number or text; got {parent!r}")
        call = _Call(name, (parent,) if parent in names else (), None, "session")
    elif "wait_for" in line:
        awaited = line["wait_for"]
        if not isinstance(awaited, list) or not all(isinstance(one, str | int) for one in awaited):
            raise InputError(f"{where}: wait_for must be a list of request_ids; got {awaited!r}")
        unknown = [one for one in awaited if one not in names]
        if unknown:
            raise InputError(f"{where}: wait_for must name request_ids of lines before; got {unknown[0]!r}")
        name = line.get("request_id")
        call = _Call(name, tuple(awaited), delay_s or 0.0, "task")
    elif line.get("session_id") is not None:
        return _next_turn(last, str(line["session_id"]), delay_s)
    else:
        return None
    if not isinstance(name, str | int) or name in names:
        raise InputError(f"{where}: a request of a session must have a name of its own; got {name!r}")
    names.add(name)
    return call


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
    where, texts, blocks, call, _ = line
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
    return _TraceRow(
        time_s=_time(texts["timestamp"], where), blocks=blocks, tenant=texts.get(_TENANT, ""), call=call, **numbers
    )


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
