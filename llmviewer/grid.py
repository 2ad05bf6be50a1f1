"""sweep(): the same questions over a grid of settings, as arrays. Only techniques and what-ifs are looped over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from operator import add
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from . import given
from .arranged import answer, expected_answer
from .errors import InputError, suggest
from .expectation.expected import Interval
from .expectation.profile import Profile
from .forms import Num
from .generation import generation
from .hardware import Hardware
from .hardware_files import load_hardware
from .hardware_keys import SECTIONS
from .layout import ALONE, DEGREES, Layout, parse_layout
from .model import Model
from .setting import Setting, arranges, check_images, whole
from .techniques import Technique, parse_techniques
from .transforms.offload import ON_DEVICE, Offload
from .transforms.quantize import PUBLISHED, unless_published
from .workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

NUMBERS: Final = ("batch", "prompt", "gen", "kv_len", "images")  # axes along which arrays run
TECHNIQUES: Final = ("quant", "attention", "layout")  # axes with a graph for each value
DEVICE: Final = frozenset(f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys)  # what-ifs on it
_MOST: Final = 10_000_000  # values of an axis
_MOST_POINTS: Final = 100_000_000  # whose columns are in memory at once, some 20 GB
_CHUNK: Final = 16_384  # points whose arrays stay in a core's cache together
_RANGE: Final = re.compile(r"(\d+)\.\.(\d+)(?:([*+])(\d+))?")

Column = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One row per point; the last axis given runs fastest. Times are lower bounds. [s], [B], [OP]

    batch, prompt, kv_len, gen, quant, attention    the point; kv_len is that of the decode step
    images                                          of each prompt, where given
    memory.bandwidth, ...                           what-ifs on the device, as they were written
    ttft_s, prefill_ops, prefill_bytes              the prefill
    decode_step_s, decode_ops, decode_bytes         one decode step of the whole batch
    decode_tokens_per_s                             batch over decode_step_s
    tpot_s, latency_s, tokens_per_s                 the whole generation, where `gen` is given
    weight_bytes, kv_cache_bytes, activation_bytes, total_bytes, fits
    expected_ttft_s, expected_decode_step_s, and with `gen` expected_tpot_s and expected_latency_s, each with its _low_s
    and _high_s, and the tokens_per_s of both, where asked for; nan where only bounds are known

    A model that does not generate has one pass, the prefill, and no columns of decode steps. Where techniques arrange
    passes, ttft_s, prefill_ops and prefill_bytes are of all those until the first token, a decode step is one pass of
    the model, and decode_tokens_per_s is nan: how many tokens a pass makes is in tokens_per_s.
    """

    model: str
    hardware: str
    columns: Mapping[str, Column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def to_frame(self) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(dict(self.columns))


def sweep(
    model: str | Model,
    hardware: str | Hardware,
    over: Mapping[str, Sequence[int] | Sequence[str]],
    *,
    batch: int = 1,
    prompt: int = 1024,
    gen: int | None = None,
    kv_len: int | None = None,
    images: int | None = None,
    quant: str | None = None,
    attention: str | None = None,
    accounting: str = "faithful",
    mla: str = "auto",
    expert_skew: float = 0,
    mtp: bool = False,
    layout: str | Layout = ALONE,
    offload: str | Offload = ON_DEVICE,
    hardware_set: Sequence[str] = (),
    techniques: Sequence[str | Mapping[str, object] | Technique] = (),
    expected: bool = False,
    library: str = "",
    engine: str = "",
    profiles: Sequence[str | Path | Profile] = (),
    progress: Callable[[int, int], object] = lambda done, points: None,
) -> Sweep:
    """Every combination of the values in `over`, whose keys are among NUMBERS, TECHNIQUES and DEVICE: the values of a
    key of the device's file, such as "memory.bandwidth", are what-ifs after those of `hardware_set`, such as "2x".
    Degrees of parallelism (tp, pp, ep, dp, cp) are one axis of layouts, all combinations of them.

    The other arguments are as those of analyze(), for what `over` does not name. Without `gen`, which techniques that
    arrange passes need, no generation is summed up and memory is for the prompt and one token. kv_len follows the
    prompt where it is not given. There are no pictures where `images` is not given. `expected` adds what to expect of
    real kernels, of `library` and `engine`.
    progress  is told of points done, and of how many there are, as they come

    Raises InputError where an axis is unknown, empty or holds a number below 1.
    """
    if not isinstance(over, Mapping):
        raise InputError(f"over must be a mapping of axes to their values; got {over!r}")
    over = laid_out(over)
    for axis, values in over.items():
        _check_axis(axis, values)
    given.one(quant=quant)
    given.listed(hardware_set=hardware_set, techniques=techniques)
    ours = parse_techniques(techniques)
    check_techniques(ours, over, gen)
    check_changes(hardware_set, over)
    precisions: Sequence[Any] = over.get("quant", (quant,))
    asked = list(map(unless_published, precisions))
    named = asked[0] or next((one.quant for one in ours if one.quant), PUBLISHED)
    base = Setting.of(
        model,
        hardware,
        quant=None if None in asked else asked[0],
        attention=attention,
        accounting=accounting,
        mla=mla,
        expert_skew=expert_skew,
        mtp=mtp,
        layout=layout,
        offload=offload,
        hardware_set=hardware_set,
        techniques=ours,
        library=library,
        engine=engine,
        profiles=profiles,
    )
    check_expected(library, profiles, expected=expected)
    if expected and base.kernels is None:
        raise InputError("expected: survey accounting counts what no kernel does; use faithful")
    numbers = {"batch": batch, "prompt": prompt, "gen": gen, "kv_len": kv_len, "images": images}
    for name, value in numbers.items():
        if value is not None or (name in ("batch", "prompt") and name not in over):
            whole(name, value, least=0 if name == "images" else 1)
    least, most = (
        pick(map(int, over.get(name, (value or 0,))))
        for pick, name, value in ((min, "prompt", prompt), (max, "images", images))
    )
    check_images(base.model, prompt=least, images=most)
    _check_steps(base.model, over, numbers)
    shape = tuple(len(values) for values in over.values())
    points = prod(shape)
    if points > _MOST_POINTS:
        raise InputError(f"a sweep has at most {_MOST_POINTS} points at once; got {points}; fill a folder with -o DIR/")
    columns: dict[str, Column] = {}
    done = 0
    for chosen, rows in _settings(over, shape):
        changes = [f"{key}={value}" for key, value in chosen.items() if key in DEVICE]
        device = _changed(hardware, (*hardware_set, *changes)) if changes else base.hardware
        own = {"quant": unless_published(chosen.get("quant")), "attention": chosen.get("attention")}
        laid = parse_layout(chosen["layout"]) if "layout" in chosen else base.layout
        setting, said = replace(base, hardware=device, layout=laid).having(**own).agreed(), {"quant": named, **chosen}
        for start in range(0, len(rows), _CHUNK):
            chunk = rows[start : start + _CHUNK]
            at = _numbers(over, shape, chunk, numbers)
            found = said | _points(setting, at) | (_expected(setting, at) if expected else {})
            for name, column in found.items():
                if name not in columns:
                    columns[name] = np.empty(points, dtype=_dtype(name, column))
                columns[name][chunk] = column
            done += len(chunk)
            progress(done, points)
    return Sweep(model=base.model.name, hardware=base.hardware.name, columns=columns)


def _changed(hardware: str | Hardware, changes: Sequence[str]) -> Hardware:
    if not isinstance(hardware, str):
        raise InputError("what-ifs need hardware given by name; change a Hardware with dataclasses.replace")
    return load_hardware(hardware, changes)


def parse_axis(text: str, *, option: str = "--over ", most: int = _MOST) -> tuple[str, list[int] | list[str]]:
    """Read "batch=1..256", "batch=1..256*2", "prompt=128..4096+128", "prompt=128,512", "quant=W16A16,W4A16g128",
    "layout=tp=1,tp=4 pp=2" or "memory.bandwidth=1x,2x".

    option  where the user wrote it
    most    values that there may be

    Raises InputError where the text is none of these.
    """
    name, equals, given = (part.strip() for part in text.partition("="))
    where = f"{option}{text}"
    if equals and "." in name and name not in DEVICE:
        raise InputError(f"{where}: no number {name!r} in a hardware file; {suggest(name, DEVICE)}")
    if not equals or name not in (*NUMBERS, *TECHNIQUES, *DEGREES, *DEVICE):
        known = ", ".join((*NUMBERS, *TECHNIQUES, *DEGREES))
        must = f"must be AXIS=VALUES, with an axis of {known}, in a folder also offload"
        such = "such as batch=1..256, prompt=128,512,2048 or tp=1,2,4"
        raise InputError(f"{where}: {must}, {such}; or a what-if on the device, memory.bandwidth=1x,2x")
    if name not in (*NUMBERS, *DEGREES):
        values = [part.strip() for part in given.split(",")]
        if not all(values):
            such = "memory.bandwidth=1x,2x" if name in DEVICE else "quant=published,fp8"
            raise InputError(f"{where}: must be values with commas between, such as {such}; got {given!r}")
        return name, values
    return name, parse_numbers(given, where=where, most=most)


def parse_numbers(given: str, *, where: str, most: int = _MOST) -> list[int]:
    """Read "8", "1,8,64", "1..64" or "1..64*2", written `where`.

    Raises InputError where the text is none of these, or there are more than `most`.
    """
    try:
        ranges = [_values(part.strip()) for part in given.split(",")]
    except ValueError:
        must = "must be whole numbers, or ranges such as 1..256, 1..256*2 (doubling) or 128..4096+128 (in steps)"
        raise InputError(f"{where}: {must}; got {given!r}") from None
    count = sum(_count(values) for values in ranges)
    if count > most:
        raise InputError(f"{where}: must be at most {most} values; got {count}")
    return [value for values in ranges for value in values]


def _count(values: Sequence[int]) -> int:
    """Of a range, without len(), which overflows."""
    return (values.stop - values.start - 1) // values.step + 1 if isinstance(values, range) else len(values)


def _values(part: str) -> Sequence[int]:
    match = _RANGE.fullmatch(part)
    if not match:
        return [int(part)]
    first, last, step = int(match[1]), int(match[2]), int(match[4] or 1)
    if last < first or (match[3] == "*" and (step < 2 or first < 1)) or step < 1:
        raise ValueError(part)
    if match[3] != "*":
        return range(first, last + 1, step)
    values = [first]
    while values[-1] * step <= last:
        values.append(values[-1] * step)
    return values


def laid_out(over: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """`over` with the degrees of parallelism among its axes as one axis of layouts, in the place of the first of them.

    Raises InputError where layouts are an axis, too, or a degree is not a whole number from 1.
    """
    degrees = {name: over[name] for name in DEGREES if name in over}
    if degrees and "layout" in over:
        raise InputError(f"{next(iter(degrees))}: the axis layout says it too; give one of them")
    for name, values in degrees.items():
        _check_values(name, values)
    each = ([f"{name}={whole(name, value)}" for value in values] for name, values in degrees.items())
    layouts = list(map(" ".join, product(*each)))
    return {"layout" if name in degrees else name: layouts if name in degrees else over[name] for name in over}


def _check_values(name: str, values: object) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
        raise InputError(f"{name}: must be a list of values; got {values!r}")
    if not len(values):
        raise InputError(f"{name}: nothing to sweep over")


def _check_axis(name: str, values: Sequence[int] | Sequence[str]) -> None:
    if name not in (*NUMBERS, *TECHNIQUES, *DEVICE):
        raise InputError(f"no axis {name!r} to sweep over; {suggest(name, (*NUMBERS, *TECHNIQUES, *DEVICE))}")
    _check_values(name, values)
    if name in DEVICE:
        for value in values:
            if not isinstance(value, str):
                raise InputError(f"{name}: must be texts, such as '2x' or '155 TOP/s'; got {value!r}")
    elif name in TECHNIQUES:
        for value in values:
            given.one(**{name: value})
    else:
        for value in values:
            whole(name, value, least=0 if name == "images" else 1)
    check_distinct(name, values)


def check_distinct(name: str, values: Sequence[int] | Sequence[str]) -> None:
    """Raises InputError where a value of an axis is there twice."""
    if len(np.unique(values)) < len(values):
        given.each_once(name, values)


def check_techniques(techniques: Sequence[Technique], over: Iterable[str], gen: int | None) -> None:
    """Raises InputError where an axis says what a technique says, or passes are arranged for an answer of no length."""
    for one in techniques:
        if one.quant and "quant" in over:
            raise InputError(f"{one.name}: is {one.quant}, and the axis quant says the precision too; give one of them")
        if arranges([one]) and gen is None and "gen" not in over:
            raise InputError(f"{one.name}: arranges the passes of an answer; give gen (--gen), its length")


def check_changes(hardware_set: Iterable[str], over: Iterable[str]) -> None:
    """Raises InputError where an axis says what a what-if says."""
    for change in hardware_set:
        if (key := change.partition("=")[0].strip()) in over:
            raise InputError(f"--hardware-set {change}: the axis {key} says {key} too; give one of them")


def check_expected(library: str, profiles: Sequence[object], *, expected: bool) -> None:
    """Raises InputError where something is said of what is expected, and nothing is."""
    if (library or profiles) and not expected:
        raise InputError(
            f"{'library' if library else 'profiles'}: is of what kernels are expected to take; give expected=True "
            "(--expected)"
        )


def _check_steps(model: Model, over: Mapping[str, Sequence[Any]], fixed: Mapping[str, int | None]) -> None:
    """Raises InputError where decode steps are asked for that the model cannot take."""
    steps = [name for name in ("gen", "kv_len") if name in over or fixed[name] is not None]
    if steps and not model.generates:
        raise InputError(f"{steps[0]} is of decode steps, and {model.name} does not generate; leave it out")
    if model.encodes and "kv_len" in steps:
        prompts, contexts = (over.get(name, [fixed[name]]) for name in ("prompt", "kv_len"))
        if min(contexts) <= max(prompts):
            must = f"kv_len must be more than the {max(prompts)} tokens of the prompt, which the encoder reads"
            raise InputError(f"{must}; got {min(contexts)}")


def _dtype(name: str, column: Num | str) -> npt.DTypeLike:
    if isinstance(column, str):
        return object
    return np.int64 if name in NUMBERS else np.asarray(column).dtype


def _settings(over: Mapping[str, Sequence[Any]], shape: tuple[int, ...]) -> Iterator[tuple[dict[str, str], Column]]:
    """Each combination of techniques and what-ifs, and the rows of the grid that have it."""
    grid = np.arange(prod(shape)).reshape(shape)
    names = [name for name in over if name not in NUMBERS]
    for index in product(*(range(len(over[name])) for name in names)):
        places = dict(zip(names, index, strict=True))
        rows = grid[tuple(places.get(name, slice(None)) for name in over)]
        yield {name: over[name][place] for name, place in places.items()}, rows.ravel()


def _numbers(
    over: Mapping[str, Sequence[Any]], shape: tuple[int, ...], rows: Column, fixed: Mapping[str, int | None]
) -> dict[str, Num | None]:
    """The numbers of some rows of the grid: arrays for the axes, and what is fixed as it is."""
    places = np.unravel_index(rows, shape) if shape else ()
    axes = {
        name: np.asarray(values, dtype=np.float64)[place]
        for (name, values), place in zip(over.items(), places, strict=True)
        if name in NUMBERS
    }
    return {**fixed, **axes}


def _points(setting: Setting, at: Mapping[str, Num | None]) -> dict[str, Num | str]:
    """All columns for the numbers `at`, under one setting."""
    batch, prompt, gen, kv_len, asked = (at[name] for name in NUMBERS)
    images = 0 if asked is None else asked
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
    columns |= {} if asked is None else {"images": asked}
    layout, share = setting.layout, setting.layout.share(batch)
    values = plan.values(Workload.prefill(batch=share, prompt=prompt, images=images))
    ttft = plan.in_parts(values, layout.parts(batch), turns=False)
    columns |= {"ttft_s": ttft, "prefill_ops": plan.ops(values), "prefill_bytes": plan.bytes(values)}
    if generates:
        values = decode_plan.values(setting.step(Workload.decode(batch=share, kv_len=context, prompt=prompt)))
        step = decode_plan.in_parts(values, layout.parts(batch), turns=True)
        columns |= {"decode_step_s": step, "decode_ops": decode_plan.ops(values)}
        columns |= {"decode_bytes": decode_plan.bytes(values)}
        columns |= {"decode_tokens_per_s": batch / step}
    if gen is not None:
        whole = generation(plan, decode_plan, batch=batch, prompt=prompt, gen=gen, images=images, layout=layout)
        columns |= {"gen": gen, "tpot_s": whole.tpot_s, "latency_s": whole.latency_s}
        columns |= {"tokens_per_s": whole.tokens_per_s}
    if arranges(setting.techniques):
        columns |= _arranged(setting, at)
    tokens = np.maximum(1 if gen is None else gen, context - prompt) if generates else 0  # the step shown has to fit
    weights, cache, activations = setting.footprint.parts(batch=batch, prompt=prompt, gen=tokens, images=images)
    total = weights + cache + activations
    columns |= {"weight_bytes": weights, "kv_cache_bytes": cache, "activation_bytes": activations}
    return columns | {"total_bytes": total, "fits": total <= setting.hardware.capacity}


def _arranged(setting: Setting, at: Mapping[str, Num | None]) -> dict[str, Num | str]:
    """Columns that are otherwise where techniques arrange passes: how many tokens one makes is not the batch."""
    places, batches, lengths = _by_lengths(at)
    found = [answer(setting, batch=batch, **own) for batch, own in zip(batches, lengths, strict=True)]

    def column(name: str) -> Column:
        return _joined(places, [getattr(one, name) for one in found])

    columns: dict[str, Num | str] = {"ttft_s": column("ttft_s"), "prefill_ops": column("ops")}
    columns |= {"prefill_bytes": column("nbytes"), "decode_tokens_per_s": np.nan}
    return columns | {name: column(name) for name in ("tpot_s", "latency_s", "tokens_per_s")}


def _by_lengths(at: Mapping[str, Num | None]) -> tuple[list[Column], list[Column], list[dict[str, int]]]:
    """Rows whose answers have equal lengths: their places, their batches, and those lengths."""
    usual = {"batch": 1, "prompt": 1, "gen": 1, "images": 0}
    given = [np.atleast_1d(value if (value := at[name]) is not None else least) for name, least in usual.items()]
    batch, *lengths = np.broadcast_arrays(*given)
    distinct, group = np.unique(np.stack(lengths), axis=1, return_inverse=True)
    places = [np.flatnonzero(group.ravel() == i) for i in range(distinct.shape[1])]
    names = [name for name in usual if name != "batch"]
    each = [dict(zip(names, map(int, values), strict=True)) for values in distinct.T]
    return places, [batch[rows].astype(np.float64) for rows in places], each


def _joined(places: Sequence[Column], parts: Sequence[Num | str]) -> Column:
    """A column of all rows."""
    whole = np.empty(sum(map(len, places)))
    for rows, part in zip(places, parts, strict=True):
        whole[rows] = part
    return whole


def _expected(setting: Setting, at: Mapping[str, Num | None]) -> dict[str, Num | str]:
    """Columns of what real kernels are expected to take for the numbers `at`."""
    batch, prompt, gen, kv_len, images = (at[name] for name in NUMBERS)
    assert batch is not None
    assert prompt is not None
    context = prompt + 1 if kv_len is None else kv_len
    share = setting.layout.share(batch)
    read = Workload.prefill(batch=share, prompt=prompt, images=0 if images is None else images)
    columns = _interval("expected_ttft", setting.expected_time("prefill", setting.prefill(read), batch))
    if setting.model.generates:
        step = setting.step(Workload.decode(batch=share, kv_len=context, prompt=prompt))
        time = setting.expected_time("decode", step, batch)
        rate = batch / time.expected if time and not arranges(setting.techniques) else np.nan
        columns |= _interval("expected_decode_step", time) | {"expected_decode_tokens_per_s": rate}
    return columns | (_expected_answers(setting, at) if gen is not None else {})


def _expected_answers(setting: Setting, at: Mapping[str, Num | None]) -> dict[str, Num | str]:
    """Those of whole generations; errors until the first token and after it are those of the same kernels, so they
    add.
    """
    places, batches, lengths = _by_lengths(at)
    parts: list[dict[str, Num | str]] = []
    for batch, own in zip(batches, lengths, strict=True):
        first, rest = expected_answer(setting, batch=batch, **own)
        steps = own["gen"] - 1
        whole = first.join(rest, add) if first and rest else None if steps else first
        found = _interval("expected_ttft", first)
        found |= _interval("expected_tpot", rest.map(lambda s, n=steps: s / n) if rest else None)  # type: ignore[misc]
        found |= _interval("expected_latency", whole)
        parts.append(found | {"expected_tokens_per_s": batch * own["gen"] / whole.expected if whole else np.nan})
    return {name: _joined(places, [part[name] for part in parts]) for name in parts[0]}


def _interval(name: str, found: Interval | None) -> dict[str, Num | str]:
    expected, low, high = (found.expected, found.low, found.high) if found else (np.nan, np.nan, np.nan)
    return {f"{name}_s": expected, f"{name}_low_s": low, f"{name}_high_s": high}
