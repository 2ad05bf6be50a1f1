"""Summary of a sharded sweep: the best points of each device, the Pareto front, and refused settings.

Row groups are read one at a time, so 10^9 points take no more memory than 10^6.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..records import frozen
from .axes import NUMBERS
from .design import Design
from .shard_files import damaged, is_finished, refusals, shard_path

if TYPE_CHECKING:
    import pandas as pd

_MAX_CANDIDATES: Final = 100_000  # rows kept before dominated ones are dropped

Row = Mapping[str, str | int | float | None]


class Measures(NamedTuple):
    """Columns that points are ranked by: TTFT, latency, TPOT [s], and tokens of the whole batch per second [1/s]."""

    first: str
    latency: str
    time: str
    rate: str


def measures(design: Design, *, expected: bool = False) -> Measures:
    """The measures of a design: columns of expected times or of bounds."""
    generation_measures = ("latency_s", "tpot_s", "tokens_per_s")
    step_measures = ("decode_step_s", "decode_step_s", "decode_tokens_per_s")
    names = ("ttft_s", *(generation_measures if "gen" in design.numbers else step_measures))
    return Measures(*(f"expected_{name}" if expected else name for name in names))


@frozen(kw_only=True)
class Summary:
    """Summary of the points that fit on their device. [s, 1/s]

    by        axes whose values are ranked separately
    expected  whether points are ranked by expected times instead of bounds
    finished  number of existing shards
    points    points in the existing shards; `fitting` of them fit, and `unknown` of the fitting lack the measures
    best      one row per value of `by`, device and measure, named in its column `best`; ties: the first in the design
    front     the Pareto front of time and rate, for each value of `by`
    refused   refused settings with reasons
    """

    folder: str
    design: Design
    by: tuple[str, ...]
    expected: bool
    finished: int
    points: int
    fitting: int
    unknown: int
    best: tuple[Row, ...]
    front: tuple[Row, ...]
    refused: tuple[Mapping[str, str], ...]

    @property
    def measures(self) -> Measures:
        return measures(self.design, expected=self.expected)


def summarize(folder: Path, by: Sequence[str] = ("model",), *, expected: bool = False) -> Summary:
    """Summarizes the existing shards in a folder, by bounds or by expected times.

    Raises InputError if the folder holds no sweep, or none with expected times, if an axis is unknown, or if a shard is
    damaged.
    """
    design = Design.read(folder)
    for axis in by:
        if axis not in (*design.settings, *NUMBERS):
            raise InputError(f"--by must name axes of {', '.join((*design.settings, *NUMBERS))}; got {axis!r}")
    if expected and not design.expects:
        raise InputError(f"{folder}: has no expected times; run a sweep with --expected into another folder")
    best_axes = tuple(dict.fromkeys((*by, "hardware")))
    columns_ranked = measures(design, expected=expected)
    selection = partial(_SelectedRows, texts=tuple(design.settings))
    best = {
        columns_ranked.first: selection(partial(_best_rows, best_axes, columns_ranked.first, 1)),
        columns_ranked.latency: selection(partial(_best_rows, best_axes, columns_ranked.latency, 1)),
        columns_ranked.rate: selection(partial(_best_rows, best_axes, columns_ranked.rate, -1)),
    }
    front = selection(partial(_pareto_front, by, columns_ranked.time, columns_ranked.rate))
    columns = [*design.settings, *(axis for axis in NUMBERS if axis in design.numbers or axis == "kv_len")]
    columns += [*dict.fromkeys(columns_ranked), "total_bytes", "fits"]
    shards = [shard for shard in range(design.shards) if is_finished(folder, design, shard)]
    refused: dict[str, Mapping[str, str]] = {}
    points = fitting = unknown = 0
    for shard in shards:
        refused.update({json.dumps(setting): setting for setting in refusals(shard_path(folder, shard))})
        for frame in _row_groups(shard_path(folder, shard), columns):
            fitting_rows = frame[frame["fits"]].drop(columns="fits")
            points, fitting = points + len(frame), fitting + len(fitting_rows)
            unknown += int(fitting_rows[columns_ranked.first].isna().sum()) if expected else 0
            for selected_rows in (*best.values(), front):
                selected_rows.add(fitting_rows)
    rows = [{"best": name, **row} for name, selected_rows in best.items() for row in selected_rows.rows()]
    return Summary(
        folder=str(folder),
        design=design,
        by=tuple(by),
        expected=expected,
        finished=len(shards),
        points=points,
        fitting=fitting,
        unknown=unknown,
        best=tuple(sorted(rows, key=partial(_sort_key, best_axes))),
        front=tuple(sorted(front.rows(), key=partial(_sort_key, (*by, columns_ranked.time)))),
        refused=tuple(refused.values()),
    )


class _SelectedRows:
    """Accumulates the rows that `choose` selects; it is applied again to the selected rows."""

    def __init__(self, choose: Callable[[pd.DataFrame], pd.DataFrame], *, texts: Sequence[str]) -> None:
        self.choose = choose
        self.texts = texts
        self.frames: list[pd.DataFrame] = []

    def add(self, frame: pd.DataFrame) -> None:
        chosen = self.choose(frame)
        self.frames.append(chosen.astype(dict.fromkeys(self.texts, object)))
        if sum(map(len, self.frames)) > _MAX_CANDIDATES:
            self.frames = [self.all()]

    def all(self) -> pd.DataFrame:
        import pandas as pd

        return self.choose(pd.concat(self.frames, ignore_index=True))

    def rows(self) -> list[dict[str, Any]]:
        records = self.all().to_dict("records") if self.frames else []
        return [{str(name): _plain(value) for name, value in record.items()} for record in records]


def _best_rows(axes: Sequence[str], measure: str, sign: int, frame: pd.DataFrame) -> pd.DataFrame:
    """The first row with the smallest `sign` x `measure`, for each combination of values of `axes`."""
    ranked_rows = frame[frame[measure].notna()]
    row_labels = (sign * ranked_rows[measure]).groupby(_groups(axes, ranked_rows)).idxmin()
    return ranked_rows.loc[row_labels]


def _pareto_front(axes: Sequence[str], minimized: str, maximized: str, frame: pd.DataFrame) -> pd.DataFrame:
    """The Pareto front of `minimized` and `maximized`, for each combination of values of `axes`."""
    ranked_rows = frame[frame[minimized].notna() & frame[maximized].notna()]
    groups = _groups(axes, ranked_rows)
    places = np.lexsort((-ranked_rows[maximized].to_numpy(), ranked_rows[minimized].to_numpy(), groups))  # stable
    ordered, groups = ranked_rows.iloc[places], groups[places]
    before = ordered[maximized].groupby(groups).cummax().groupby(groups).shift()
    return ordered[~(ordered[maximized] <= before).to_numpy()]


def _groups(axes: Sequence[str], frame: pd.DataFrame) -> npt.NDArray[np.integer]:
    """A number per row; rows with equal values of the axes have equal numbers."""
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
        raise damaged(path, error) from None


def _sort_key(axes: Sequence[str], row: Row) -> list[tuple[bool, Any]]:
    """A sort key of rows by the columns `axes`; unknown values sort last."""
    return [(row[axis] is None, row[axis]) for axis in axes]


def _plain(value: Any) -> str | int | float | None:
    import pandas as pd

    if value is None or pd.isna(value):
        return None
    return value if isinstance(value, str) else value.item() if isinstance(value, np.generic) else value
