"""sweep(): an analysis over a grid of settings. Numbers are arrays; techniques and what-ifs are loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from operator import add
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import numpy as np
import numpy.typing as npt

from .. import arguments
from ..devices.files import loaded
from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.expected import Interval
from ..forms import Num
from ..generation import generation
from ..model import Model
from ..options import SettingOptions, SweepOptions, document_options, only
from ..parallel.layout import parse_layout
from ..records import frozen
from ..setting import Setting, changes_passes, opened
from ..techniques import parse_techniques
from ..transforms.quantize import PUBLISHED, unless_published
from ..variants.evaluation import Evaluation
from ..workload import Workload
from .axes import DEVICE, NUMBERS
from .checks import check_changes, check_expected, check_numbers, check_techniques, checked_axes

if TYPE_CHECKING:
    import pandas as pd

_MAX_POINTS: Final = 100_000_000  # the columns of a sweep of this size take some 20 GB of memory
_BLOCK: Final = 2**18  # points of a block, a row group of Parquet
_DEFAULTS: Final = {"batch": 1, "prompt": 1024}
_CHUNK: Final = 16_384  # points whose arrays fit in a core's cache

Column = npt.NDArray[Any]


@frozen(kw_only=True)
class Sweep:
    """A sweep's table: one row per point; the last axis given runs fastest. Times are lower bounds. [s], [B], [OP]

    batch, prompt, kv_len, gen, quant, attention    the point; kv_len is the context of the decode step
    images                                          images per prompt, if given
    memory.bandwidth, ...                           what-ifs on the device, as given
    ttft_s, prefill_ops, prefill_bytes              the prefill
    decode_step_s, decode_ops, decode_bytes         one decode step of the whole batch
    decode_tokens_per_s                             batch over decode_step_s
    tpot_s, latency_s, tokens_per_s                 the whole generation, if `gen` is given
    weight_bytes, kv_cache_bytes, activation_bytes, total_bytes, fits
    expected_ttft_s, expected_decode_step_s, and with `gen` expected_tpot_s and expected_latency_s, each with _low_s and
    _high_s, and the tokens_per_s of both, if `expected`; nan if only bounds are known

    A model that does not generate has one pass, the prefill, and no columns of decode steps. With techniques that
    arrange passes, ttft_s, prefill_ops and prefill_bytes are sums up to the first token, a decode step is one pass of
    the model, and decode_tokens_per_s is nan; tokens_per_s counts the tokens of a pass.
    """

    model: str
    hardware: str
    columns: Mapping[str, Column] = field(repr=False)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def to_frame(self) -> pd.DataFrame:
        """The table as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(dict(self.columns))


@document_options(SweepOptions)
def sweep(
    model: str | Model | Setting,
    hardware: str | Hardware | None = None,
    over: Mapping[str, Sequence[int] | Sequence[str]] | None = None,
    *,
    progress: Callable[[int, int], object] = lambda finished_points, points: None,
    **options: Unpack[SweepOptions],
) -> Sweep:
    """Analyzes every combination of the values in `over`, one row each.

    The keys of `over` are axes: batch, prompt, gen, kv_len, images, quant, attention, layout, degrees of parallelism
    (tp, pp, ep, dp, cp; all their combinations are one axis of layouts), or a number of the device, such as
    "memory.bandwidth", with what-ifs such as "2x" as values. `progress` is called with the number of finished points,
    and of all. A Setting may replace model, hardware and options. The other arguments are as in analyze(), except:

    gen       None: no generation is summed, and memory is for the prompt and one token; techniques that arrange passes
              need it
    images    None: no images, and no column of their number

    Raises InputError if an axis is unknown, empty or has a number below 1, or if an argument is invalid.
    """
    grid = _Grid.of(model, hardware, over, options)
    return grid.rows(0, grid.points, progress)


def sweep_blocks(
    model: str | Model | Setting,
    hardware: str | Hardware | None = None,
    over: Mapping[str, Sequence[int] | Sequence[str]] | None = None,
    *,
    block: int = _BLOCK,
    progress: Callable[[int, int], object] = lambda finished_points, points: None,
    **options: Unpack[SweepOptions],
) -> Iterator[Sweep]:
    """Yields the rows of sweep() in blocks of consecutive rows, for sweeps that exceed the memory."""
    grid = _Grid.of(model, hardware, over, options)
    for start in range(0, grid.points, block):
        yield grid.rows(start, min(start + block, grid.points), progress)


@frozen(kw_only=True)
class _Grid:
    """The points of a sweep.

    base      the setting that axes change, on `hardware` with the what-ifs `hardware_set`
    numbers   values of the axes of numbers that are not swept over
    expected  whether there are columns of expected times
    quant     precision where it is no axis
    settings  cached settings by their values on the axes that are no numbers
    """

    base: Setting
    hardware: str | Hardware
    hardware_set: Sequence[str]
    over: Mapping[str, Sequence[Any]]
    numbers: Mapping[str, int | None]
    expected: bool
    quant: str
    settings: dict[tuple[str, ...], Setting] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: str | Model | Setting,
        hardware: str | Hardware | None,
        swept: Mapping[str, Sequence[int] | Sequence[str]] | None,
        options_given: SweepOptions,
    ) -> Self:
        """The grid of arguments of sweep().

        Raises InputError if one is invalid.
        """
        if swept is None:
            raise InputError("over must be given: the axes of the sweep, such as over={'batch': [1, 8]}")
        model, hardware, options_given = opened(model, hardware, options_given, SweepOptions)
        numbers: dict[str, int | None] = {name: _DEFAULTS.get(name) for name in NUMBERS}
        numbers |= {name: value for name, value in options_given.items() if name in NUMBERS}  # type: ignore[misc]
        expected = options_given.get("expected", False)
        options = only(options_given, SettingOptions)
        arguments.check_options(options_given, SweepOptions)
        over = checked_axes(swept)
        techniques, changes = parse_techniques(options.get("techniques", ())), options.get("hardware_set", ())
        check_techniques(techniques, over, numbers["gen"])
        check_changes(changes, over)
        precisions: Sequence[Any] = over.get("quant", (options.get("quant"),))
        schemes = list(map(unless_published, precisions))
        quant = schemes[0] or next((technique.quant for technique in techniques if technique.quant), PUBLISHED)
        base_options: SettingOptions = {"quant": None if None in schemes else schemes[0], "techniques": techniques}
        base = Setting.of(model, hardware, **options | base_options)
        check_expected(options.get("library", ""), options.get("profiles", ()), expected=expected)
        if expected and base.kernels is None:
            raise InputError("expected: survey accounting counts what no kernel does; use faithful")
        check_numbers(base.model, over, numbers)
        grid = cls(
            base=base, hardware=hardware, hardware_set=changes, over=over, numbers=numbers, expected=expected,
            quant=quant,
        )  # fmt: skip
        if grid.points > _MAX_POINTS:
            must = f"a sweep must have at most {_MAX_POINTS} points; got {grid.points}"
            raise InputError(f"{must}; write shards with -o DIR/")
        return grid

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(values) for values in self.over.values())

    @property
    def points(self) -> int:
        return prod(self.shape)

    def rows(self, start: int, stop: int, progress: Callable[[int, int], object]) -> Sweep:
        """The rows from `start` to before `stop`."""
        columns: dict[str, Column] = {}
        finished_points = start
        for combination, row_indices in self._settings(start, stop):
            setting, texts = self._setting(combination), {"quant": self.quant, **combination}
            for first in range(0, len(row_indices), _CHUNK):
                chunk = row_indices[first : first + _CHUNK]
                numbers = _numbers(self.over, self.shape, chunk, self.numbers)
                computed = (
                    texts
                    | _bound_columns(setting, numbers)
                    | (_expected_columns(setting, numbers) if self.expected else {})
                )
                for name, column in computed.items():
                    if name not in columns:
                        columns[name] = np.empty(stop - start, dtype=_dtype(name, column))
                    columns[name][chunk - start] = column
                finished_points += len(chunk)
                progress(finished_points, self.points)
        return Sweep(model=self.base.model.name, hardware=self.base.hardware.name, columns=columns)

    def _settings(self, start: int, stop: int) -> Iterator[tuple[dict[str, str], Column]]:
        """Yields each combination of techniques and what-ifs in rows `start` to `stop`, with its row indices."""
        rows = np.arange(start, stop)
        names = [name for name in self.over if name not in NUMBERS]
        if not names:
            yield {}, rows
            return
        places = dict(zip(self.over, np.unravel_index(rows, self.shape), strict=True))
        sizes = tuple(len(self.over[name]) for name in names)
        combination_indices = np.ravel_multi_index(tuple(places[name] for name in names), sizes)
        order = np.argsort(combination_indices, kind="stable")
        distinct, starts = np.unique(combination_indices[order], return_index=True)
        for combination, combination_rows in zip(distinct, np.split(rows[order], starts[1:]), strict=True):
            index = np.unravel_index(combination, sizes)
            yield {name: self.over[name][place] for name, place in zip(names, index, strict=True)}, combination_rows

    def _setting(self, combination: Mapping[str, str]) -> Setting:
        """The base setting with the techniques and what-ifs of one combination."""
        key = tuple(combination.values())
        if key not in self.settings:
            self.settings[key] = _setting_of(self.base, self.hardware, self.hardware_set, combination)
        return self.settings[key]


def _setting_of(
    base: Setting, hardware: str | Hardware, hardware_set: Sequence[str], combination: Mapping[str, str]
) -> Setting:
    """The base setting with the techniques and what-ifs of one combination."""
    changes = [f"{key}={value}" for key, value in combination.items() if key in DEVICE]
    device, layout = base.hardware, parse_layout(combination["layout"]) if "layout" in combination else base.layout
    if changes:
        if not isinstance(hardware, str):
            raise InputError("what-ifs need hardware given by name; change a Hardware with dataclasses.replace")
        device = loaded(hardware, (*hardware_set, *changes))
    quant, attention = unless_published(combination.get("quant")) or "", combination.get("attention", "")
    return replace(base, hardware=device, layout=layout).having(quant=quant, attention=attention)


def _dtype(name: str, column: Num | str) -> npt.DTypeLike:
    if isinstance(column, str):
        return object
    return np.int64 if name in NUMBERS else np.asarray(column).dtype


def _numbers(
    over: Mapping[str, Sequence[Any]], shape: tuple[int, ...], rows: Column, fixed: Mapping[str, int | None]
) -> dict[str, Num | None]:
    """The numbers of some rows of the grid: arrays for axes, scalars for fixed numbers."""
    places = np.unravel_index(rows, shape) if shape else ()
    axes = {
        name: np.asarray(values, dtype=np.float64)[place]
        for (name, values), place in zip(over.items(), places, strict=True)
        if name in NUMBERS
    }
    return {**fixed, **axes}


def _bound_columns(setting: Setting, numbers: Mapping[str, Num | None]) -> dict[str, Num | str]:
    """All columns of one setting at `numbers`."""
    batch, prompt, gen, kv_len, image_count = (numbers[name] for name in NUMBERS)
    images = 0 if image_count is None else image_count
    assert batch is not None
    assert prompt is not None
    context = prompt + 1 if kv_len is None else kv_len
    plan, decode_plan, generates = setting.plan, setting.decode_plan, setting.model.generates
    columns: dict[str, Num | str] = {
        "attention": str(setting.attention),
        "batch": batch,
        "prompt": prompt,
    }
    columns |= {"kv_len": context} if generates else {}
    columns |= {} if image_count is None else {"images": image_count}
    layout, share = setting.layout, setting.layout.micro_batch_size(batch)
    lengths = {"prompt": prompt, "images": images}
    values = plan.values(Workload.prefill(batch=share, **lengths))
    ttft = plan.pipelined_s(values, layout.micro_batch_count(batch), autoregressive=False)
    columns |= {"ttft_s": ttft, "prefill_ops": plan.ops(values), "prefill_bytes": plan.bytes(values)}
    if generates:
        values = decode_plan.values(setting.step(Workload.decode(batch=share, kv_len=context, **lengths)))
        step = decode_plan.pipelined_s(values, layout.micro_batch_count(batch), autoregressive=True)
        columns |= {"decode_step_s": step, "decode_ops": decode_plan.ops(values)}
        columns |= {"decode_bytes": decode_plan.bytes(values)}
        columns |= {"decode_tokens_per_s": batch / step}
    if gen is not None:
        totals = generation(plan, decode_plan, batch=batch, gen=gen, layout=layout, **lengths)
        columns |= {"gen": gen, "tpot_s": totals.tpot_s, "latency_s": totals.latency_s}
        columns |= {"tokens_per_s": totals.tokens_per_s}
    if changes_passes(setting.techniques):
        columns |= _multi_pass_columns(setting, numbers)
    tokens = (
        np.maximum(1 if gen is None else gen, context - prompt) if generates else 0
    )  # the decode step of the row must fit
    weights, cache, activations = setting.footprint.parts(batch=batch, gen=tokens, **lengths)
    total = weights + cache + activations
    columns |= {"weight_bytes": weights, "kv_cache_bytes": cache, "activation_bytes": activations}
    return columns | {"total_bytes": total, "fits": total <= setting.hardware.capacity}


def _multi_pass_columns(setting: Setting, numbers: Mapping[str, Num | None]) -> dict[str, Num | str]:
    """Columns that change if techniques arrange passes: a pass then yields more or fewer tokens than the batch."""
    places, each = _evaluations(setting, numbers)

    def column(quantity: Callable[[Evaluation], Num]) -> Column:
        return _joined(places, [quantity(evaluation) for evaluation in each])

    columns: dict[str, Num | str] = {
        "ttft_s": column(lambda one: one.bounds.ttft_s), "prefill_ops": column(lambda one: one.prefill_amount("ops")),
        "prefill_bytes": column(lambda one: one.prefill_amount("bytes")), "decode_tokens_per_s": np.nan,
        "tpot_s": column(lambda one: one.bounds.tpot_s), "latency_s": column(lambda one: one.bounds.latency_s),
        "tokens_per_s": column(lambda one: one.bounds.tokens_per_s),
    }  # fmt: skip
    return columns


def _evaluations(setting: Setting, numbers: Mapping[str, Num | None]) -> tuple[list[Column], list[Evaluation]]:
    """Groups of rows with equal lengths: indices and the evaluation of each group."""
    places, batches, lengths = _by_lengths(numbers)
    evaluations = [
        Evaluation(
            setting=setting,
            batch=batch,
            prompt=group_lengths["prompt"],
            gen=group_lengths["gen"],
            images=group_lengths["images"],
        )
        for batch, group_lengths in zip(batches, lengths, strict=True)
    ]
    return places, evaluations


def _by_lengths(numbers: Mapping[str, Num | None]) -> tuple[list[Column], list[Column], list[dict[str, int]]]:
    """Groups of rows with equal lengths: indices, batches and lengths of each group."""
    defaults = {"batch": 1, "prompt": 1, "gen": 1, "images": 0}
    number_arrays = [
        np.atleast_1d(value if (value := numbers[name]) is not None else default) for name, default in defaults.items()
    ]
    batch, *lengths = np.broadcast_arrays(*number_arrays)
    distinct, group = np.unique(np.stack(lengths), axis=1, return_inverse=True)
    places = [np.flatnonzero(group.ravel() == i) for i in range(distinct.shape[1])]
    names = [name for name in defaults if name != "batch"]
    group_lengths = [dict(zip(names, map(int, values), strict=True)) for values in distinct.T]
    return places, [batch[rows].astype(np.float64) for rows in places], group_lengths


def _joined(places: Sequence[Column], parts: Sequence[Num | str]) -> Column:
    """Merges `parts`, each with the row indices in `places`, into one column."""
    column = np.empty(sum(map(len, places)))
    for rows, part in zip(places, parts, strict=True):
        column[rows] = part
    return column


def _expected_columns(setting: Setting, numbers: Mapping[str, Num | None]) -> dict[str, Num | str]:
    """Columns of expected times of one setting at `numbers`."""
    batch, prompt, gen, kv_len, image_count = (numbers[name] for name in NUMBERS)
    assert batch is not None
    assert prompt is not None
    context = prompt + 1 if kv_len is None else kv_len
    share = setting.layout.micro_batch_size(batch)
    lengths = {"prompt": prompt, "images": 0 if image_count is None else image_count}
    prefill = setting.prefill(Workload.prefill(batch=share, **lengths))
    columns = _interval_columns("expected_ttft", setting.expected_time("prefill", prefill, batch))
    if setting.model.generates:
        step = setting.step(Workload.decode(batch=share, kv_len=context, **lengths))
        time = setting.expected_time("decode", step, batch)
        rate = batch / time.expected if time and not changes_passes(setting.techniques) else np.nan
        columns |= _interval_columns("expected_decode_step", time) | {"expected_decode_tokens_per_s": rate}
    passes = gen is not None or (changes_passes(setting.techniques) and not setting.model.generates)
    return columns | (_expected_generation_columns(setting, numbers) if passes else {})


def _expected_generation_columns(setting: Setting, numbers: Mapping[str, Num | None]) -> dict[str, Num | str]:
    """Columns of expected times of whole generations.

    The errors of prefill and decode add up, because they are errors of the same kernels.
    """
    places, evaluations = _evaluations(setting, numbers)
    parts: list[dict[str, Num | str]] = []
    for evaluation in evaluations:
        first, rest = evaluation.intervals or (None, None)
        steps, tokens = evaluation.bounds.steps, evaluation.bounds.tokens
        total = first.join(rest, add) if first and rest else None
        group_columns = _interval_columns("expected_ttft", first)
        per_token = rest.map(lambda s, n=steps: s / n) if rest and np.all(steps) else None  # type: ignore[misc]
        group_columns |= _interval_columns("expected_tpot", per_token)
        group_columns |= _interval_columns("expected_latency", total)
        parts.append(group_columns | {"expected_tokens_per_s": tokens / total.expected if total else np.nan})
    return {name: _joined(places, [part[name] for part in parts]) for name in parts[0]}


def _interval_columns(name: str, interval: Interval | None) -> dict[str, Num | str]:
    expected, low, high = (interval.expected, interval.low, interval.high) if interval else (np.nan, np.nan, np.nan)
    return {f"{name}_s": expected, f"{name}_low_s": low, f"{name}_high_s": high}
