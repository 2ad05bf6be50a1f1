"""What a sweep of shards found: the best of each device, what no other point beats, and what was refused.

Row groups are read one after the other, so 10^9 points take no more memory than 10^6.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from .errors import InputError
from .grid import NUMBERS
from .shards import SETTINGS, Design, finished, path_of

if TYPE_CHECKING:
    import pandas as pd

_MANY: Final = 100_000  # candidates, after which those that others beat are let go

Row = Mapping[str, str | int | float | None]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Of the points that fit on their device. [s, 1/s]

    by        axes whose values are not compared with each other
    finished  shards that are there
    points    in those, and how many of them are `fitting`
    best      a row of each value of `by`, device and measure, which `best` names: the first in the design of equals
    front     rows of each value of `by` that no other beats in one of time() and rate() without losing in the other
    refused   settings that cannot run, with the reason
    """

    folder: str
    design: Design
    by: tuple[str, ...]
    finished: int
    points: int
    fitting: int
    best: tuple[Row, ...]
    front: tuple[Row, ...]
    refused: tuple[Mapping[str, str], ...]


def time(design: Design) -> str:
    """The column that a front is for the least of: between two tokens. [s]"""
    return "tpot_s" if "gen" in design.numbers else "decode_step_s"


def rate(design: Design) -> str:
    """The column that a front is for the most of: tokens of the whole batch. [1/s]"""
    return "tokens_per_s" if "gen" in design.numbers else "decode_tokens_per_s"


def summarize(folder: Path, by: Sequence[str] = ("model",)) -> Summary:
    """Reads the shards that are there.

    Raises InputError where the folder holds no sweep, an axis is not known or a shard is damaged.
    """
    for axis in by:
        if axis not in (*SETTINGS, *NUMBERS):
            raise InputError(f"--by must name axes of {', '.join((*SETTINGS, *NUMBERS))}; got {axis!r}")
    design = Design.read(folder)
    each = tuple(dict.fromkeys((*by, "hardware")))
    latency = "latency_s" if "gen" in design.numbers else time(design)
    best = {
        "ttft_s": _Kept(partial(_least, each, "ttft_s", 1)),
        latency: _Kept(partial(_least, each, latency, 1)),
        rate(design): _Kept(partial(_least, each, rate(design), -1)),
    }
    front = _Kept(partial(_front, by, time(design), rate(design)))
    columns = [*SETTINGS, *(axis for axis in NUMBERS if axis in design.numbers or axis == "kv_len")]
    columns += [*dict.fromkeys(("ttft_s", latency, time(design), rate(design))), "total_bytes", "fits"]
    there = [shard for shard in range(design.shards) if finished(folder, design, shard)]
    refused: dict[str, Mapping[str, str]] = {}
    points = fitting = 0
    for shard in there:
        refused.update({json.dumps(setting): setting for setting in _refused(path_of(folder, shard))})
        for frame in _row_groups(path_of(folder, shard), columns):
            able = frame[frame["fits"]].drop(columns="fits")
            points, fitting = points + len(frame), fitting + len(able)
            for kept in (*best.values(), front):
                kept.add(able)
    rows = [{"best": name, **row} for name, kept in best.items() for row in kept.rows()]
    return Summary(
        folder=str(folder),
        design=design,
        by=tuple(by),
        finished=len(there),
        points=points,
        fitting=fitting,
        best=tuple(sorted(rows, key=partial(_place, each))),
        front=tuple(sorted(front.rows(), key=partial(_place, (*by, time(design))))),
        refused=tuple(refused.values()),
    )


class _Kept:
    """Rows that `choose` leaves of all it is given: choosing among chosen ones is choosing among all."""

    def __init__(self, choose: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
        self.choose = choose
        self.frames: list[pd.DataFrame] = []

    def add(self, frame: pd.DataFrame) -> None:
        chosen = self.choose(frame)
        self.frames.append(chosen.astype(dict.fromkeys(SETTINGS, object)))
        if sum(map(len, self.frames)) > _MANY:
            self.frames = [self.all()]

    def all(self) -> pd.DataFrame:
        import pandas as pd

        return self.choose(pd.concat(self.frames, ignore_index=True))

    def rows(self) -> list[dict[str, Any]]:
        records = self.all().to_dict("records") if self.frames else []
        return [{str(name): _plain(value) for name, value in record.items()} for record in records]


def _least(each: Sequence[str], measure: str, sign: int, frame: pd.DataFrame) -> pd.DataFrame:
    """The first row of the least `sign` times `measure` for each value of some axes."""
    known = frame[frame[measure].notna()]
    places = (sign * known[measure]).groupby(_groups(each, known)).idxmin()
    return known.loc[places]


def _front(by: Sequence[str], least: str, most: str, frame: pd.DataFrame) -> pd.DataFrame:
    """For each value of some axes, the rows that none has less of one measure, or more of the other, at no loss."""
    known = frame[frame[least].notna() & frame[most].notna()]
    groups = _groups(by, known)
    places = np.lexsort((-known[most].to_numpy(), known[least].to_numpy(), groups))  # stable
    ordered, groups = known.iloc[places], groups[places]
    before = ordered[most].groupby(groups).cummax().groupby(groups).shift()
    return ordered[~(ordered[most] <= before).to_numpy()]


def _groups(axes: Sequence[str], frame: pd.DataFrame) -> npt.NDArray[np.integer]:
    """A number for each row, equal where the values of the axes are."""
    if not axes:
        return np.zeros(len(frame), dtype=np.int64)
    return frame.groupby(list(axes), observed=True, dropna=False, sort=False).ngroup().to_numpy()


def _row_groups(path: Path, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
    import pandas as pd
    import pyarrow as pa
    from pyarrow import parquet

    nullable = {pa.int64(): pd.Int64Dtype()}
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns=list(columns)).to_pandas(types_mapper=nullable.get)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: is damaged; remove it and run the same sweep again: {error}") from None


def _refused(path: Path) -> list[dict[str, str]]:
    from pyarrow import parquet

    found: list[dict[str, str]] = json.loads(parquet.read_metadata(path).metadata[b"refused"])
    return found


def _place(axes: Sequence[str], row: Row) -> list[tuple[bool, Any]]:
    """Rows in the order of these columns, what is not known last."""
    return [(row[axis] is None, row[axis]) for axis in axes]


def _plain(value: Any) -> str | int | float | None:
    import pandas as pd

    if value is None or pd.isna(value):
        return None
    return value if isinstance(value, str) else value.item() if isinstance(value, np.generic) else value
