"""recommend(): the gain of each technique for a model on a device, alone and combined, and what bounds it then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import combinations
from math import comb
from typing import Any, Final, Unpack

from .. import __version__
from ..arguments import among, several, with_defaults
from ..devices.files import loaded
from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.profile import read_given
from ..model import Model
from ..model_files import load_model
from ..options import LayoutOptions, ServedOptions, document_options
from ..rows import Rows
from ..setting import Setting, check_countable, layout_of, whole
from ..techniques import Touches
from .objectives import Generated, Objective
from .options import Option, options_of, with_options, without_usual

SCHEMA_VERSION: Final = 1  # of to_dict()
TOGETHER: Final = 3  # techniques in the largest combination
_COMBINED: Final = 8  # options that are combined: the best, of each group no more than two
_ALIKE: Final = 2
_COMBINATIONS: Final = sum(comb(_COMBINED, count) for count in range(2, TOGETHER + 1))
_LOOKED_AT: Final = 24  # combinations that gain most at the bound, of which is asked what is expected
_AMOUNTS: Final = ("ops", "bytes", "launches", "passes")
_WORTH: Final = 0.02  # of what is used, to be worth a word
_LEAST: Final = 1.005  # times better, to be worth a line


@dataclass(frozen=True, kw_only=True)
class Line:
    """Options together, and what they make of a generation.

    gain      times better than without them at the bound, whether or not that fits the memory
    expected  the same as expected of kernels; None where no more than the bound is known
    ops, bytes, launches and passes are over those without them
    """

    options: tuple[Option, ...]
    base: Generated = field(repr=False)
    result: Generated = field(repr=False)
    wanted: Objective = field(repr=False)
    gain: float
    expected: float | None
    ops: float
    bytes: float
    launches: float
    passes: float
    before: str  # what bounds the phase in which most of the time is saved

    @classmethod
    def of(cls, options: tuple[Option, ...], base: Generated, result: Generated, wanted: Objective) -> Line:
        ratios = {name: getattr(result, name) / getattr(base, name) for name in _AMOUNTS}
        gain = result.times.merit(wanted) / base.times.merit(wanted)
        saved = base.times.latency_s - result.times.latency_s
        sooner = base.times.ttft_s - result.times.ttft_s
        before = base.reading if sooner > saved / 2 > 0 or wanted is Objective.TTFT else base.bound
        known = base.expected and result.expected
        expected = known.merit(wanted) / base.likely.merit(wanted) if known else None
        return cls(
            options=options, base=base, result=result, wanted=wanted, gain=gain, expected=expected, before=before,
            **ratios,
        )  # fmt: skip

    def with_expected(self) -> Line:
        """With what kernels are expected to take."""
        return Line.of(self.options, self.base, self.result.with_expected(), self.wanted)

    @property
    def likely(self) -> float:
        """What is expected to be gained, where something is."""
        return self.gain if self.expected is None else self.expected

    @property
    def name(self) -> str:
        return " + ".join(option.name for option in self.options)

    @property
    def touches(self) -> Touches:
        """What all options together change: the last in the order of Touches."""
        return max((option.touches for option in self.options), key=list(Touches).index)

    def at_hand(self) -> int:
        """The place of its group: the same answers, other answers, a draft, other weights."""
        return list(Touches).index(self.touches)

    @property
    def relieves(self) -> str:
        """The resource of which less is used, in words: passes where there are fewer, launches where that is what is
        expected to help, else what bounds.
        """
        falls = {"passes": self.passes, "memory traffic": self.bytes, "OPs": self.ops, "launches": self.launches}
        if self.passes < 1 - _WORTH:
            name = "passes"
        elif self.gain <= _LEAST < self.likely and self.launches < 1 - _WORTH:
            name = "launches"
        else:
            first = "OPs" if self.before == "compute" else "memory traffic"
            name = first if falls[first] < 1 - _WORTH else min(falls, key=falls.__getitem__)
        return f"{name} {falls[name] - 1:+.0%}" if falls[name] < 1 - _WORTH else "some of each"


@dataclass(frozen=True, kw_only=True)
class Advice(Rows):
    """The result of recommend(). `alone` and `together` are in groups: options for the same weights that leave answers
    as they are, those that change them, options that need a draft, and options that need other weights; each group has
    the best first, by expected times if known.

    idle     options that would not help, or make it worse
    large    options with which it does not fit the memory
    refused  options that make no sense here, with the reason
    """

    wanted: Objective
    batch: int
    prompt: int
    gen: int
    given: tuple[str, ...]
    without: tuple[Touches, ...]
    base: Generated
    alone: tuple[Line, ...] = field(repr=False)
    together: tuple[Line, ...] = field(repr=False)
    idle: tuple[Line, ...] = field(repr=False)
    large: tuple[Line, ...] = field(repr=False)
    refused: tuple[tuple[Option, str], ...] = field(repr=False)

    @property
    def inputs(self) -> dict[str, Any]:
        """What was asked, as the JSON document has it."""
        setting = self.base.setting
        return {
            "for": str(self.wanted), "batch": self.batch, "prompt": self.prompt, "gen": self.gen,
            "quant": str(setting.quantization), "attention": str(setting.attention),
            "layout": str(setting.layout), "techniques": list(self.given), "without": list(map(str, self.without)),
            "library": setting.kernels.library if setting.kernels and self.base.expected else None,
            "engine": setting.engine.name if setting.engine else None,
        }  # fmt: skip

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each line, with what kind of lines it is among."""
        document = self.to_dict()
        for kind in ("alone", "together", "no_help", "too_large"):
            for line in document[kind]:
                yield {"kind": kind, **line, "techniques": " + ".join(line["techniques"])}

    def to_dict(self) -> dict[str, Any]:
        """The JSON document; docs/serving.md has its keys."""
        return {
            "schema_version": SCHEMA_VERSION,
            "llmviewer_version": __version__,
            "model": self.base.setting.model.name,
            "hardware": self.base.setting.hardware.name,
            "inputs": self.inputs,
            "without": _numbers(self.base),
            "alone": [_line(line) for line in self.alone],
            "together": [_line(line) for line in self.together],
            "no_help": [_line(line) for line in self.idle],
            "too_large": [_line(line) for line in self.large],
            "refused": [{"technique": option.name, "reason": reason} for option, reason in self.refused],
        }  # fmt: skip


@document_options(ServedOptions)
def recommend(
    model: str | Model,
    hardware: str | Hardware,
    *,
    wanted: str = "latency",
    batch: int = 1,
    prompt: int = 1024,
    gen: int = 128,
    max_devices: int = 1,
    without: Sequence[str] = (),
    progress: Callable[[int, int], object] = lambda done, steps: None,
    **options: Unpack[ServedOptions],
) -> Advice:
    """The gain of each technique with its usual parameters, of precisions, and of degrees of parallelism.

    wanted       what to improve: "latency", "ttft", "tpot" or "throughput"
    max_devices  most devices for tensor parallelism
    without      "answers" leaves out techniques that change the answers, "draft" those that need a draft model or draft
                 heads, "model" those that need other weights
    progress     called with the number of finished options and combinations, and of all at most

    The options describe the setting that changes are compared with: `techniques` are those already in use.

    Raises InputError if an argument is invalid, or the model does not generate.
    """
    aim = among("wanted", wanted, Objective)
    given = with_defaults(options, ServedOptions)
    used = tuple(str(one) for one in given["techniques"])
    left = tuple(among("without", one, Touches) for one in several("without", without))
    size = {name: whole(name, value) for name, value in (("batch", batch), ("prompt", prompt), ("gen", gen))}
    apart = (*LayoutOptions.__annotations__, "hardware_set")
    asked: dict[str, Any] = {
        **{name: value for name, value in given.items() if name not in apart},
        "layout": layout_of(given), "techniques": used, "profiles": read_given(given["profiles"]), **size,
    }  # fmt: skip
    device = loaded(hardware, given["hardware_set"])
    run = partial(_run, load_model(model) if isinstance(model, str) else model, device)
    check_countable(batch, prompt + gen)
    if gen < 2:
        raise InputError("gen must be at least 2, as techniques are weighed by a whole answer; got 1")
    base = run(asked).with_expected()
    every = options_of(base.setting, asked, most=whole("max_devices", max_devices), larger=aim is Objective.THROUGHPUT)
    tried = [option for option in every if option.touches not in left]
    steps = len(tried) + _COMBINATIONS
    trial = _Trial(run=run, asked=asked, aim=aim, base=base, tell=lambda done: progress(done, steps))
    lines, refused = trial.alone(tried)
    fitting = [line for line in lines if line.result.fits]
    together = trial.together(lines, len(tried))
    progress(steps, steps)
    return Advice(
        wanted=aim, given=used, without=left, base=base, together=tuple(sorted(together, key=Line.at_hand)),
        alone=tuple(sorted((line for line in fitting if line.likely > _LEAST or not base.fits), key=Line.at_hand)),
        idle=tuple(line for line in fitting if line.likely <= _LEAST and base.fits),
        large=tuple(line for line in lines if not line.result.fits),
        refused=(*(pair for pair in without_usual(base.setting.techniques) if pair[0].touches not in left), *refused),
        **size,
    )  # fmt: skip


def _run(model: Model, hardware: Hardware, asked: dict[str, Any]) -> Generated:
    """A generation with the arguments of analyze()."""
    size = {name: asked[name] for name in ("batch", "prompt", "gen")}
    setting = Setting.of(model, hardware, **{name: value for name, value in asked.items() if name not in size})
    if not setting.model.generates:
        raise InputError(f"{setting.model.name} does not generate: techniques are weighed by a whole answer")
    return Generated.of(setting, **size)


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """A request, and what options make of it.

    run   makes a generation of the arguments of analyze()
    base  that of what is `asked`
    tell  is told of options and combinations done
    """

    run: Callable[[dict[str, Any]], Generated]
    asked: dict[str, Any]
    aim: Objective
    base: Generated
    tell: Callable[[int], object]

    def alone(self, options: Sequence[Option]) -> tuple[list[Line], list[tuple[Option, str]]]:
        """What each makes of it, the best first; and those that make no sense here, with the reason."""
        lines: list[Line] = []
        refused: list[tuple[Option, str]] = []
        for done, option in enumerate(options, 1):
            try:
                lines.append(self._with(option).with_expected())
            except InputError as error:
                refused.append((option, str(error)))
            self.tell(done)
        return sorted(lines, key=lambda line: -line.likely), refused

    def together(self, lines: Sequence[Line], done: int) -> tuple[Line, ...]:
        """Of those that help alone, combinations that fit and are better than each of their parts, the best first.

        lines  what every option makes of it alone, the best first
        done   options that `tell` was told of
        """
        helping = [line for line in lines if line.likely > _LEAST and (line.result.fits or not self.base.fits)]
        joined: list[Line] = []
        for place, line in enumerate(self._combined(helping), done + 1):
            joined += [line] if line and line.result.fits else []
            self.tell(place)
        joined.sort(key=lambda line: -line.gain)
        expected = [line.with_expected() for line in joined[:_LOOKED_AT]]
        best = {line.options[0].name: line.likely * line.result.fits for line in lines}
        better = [line for line in expected if line.likely > max(best[option.name] for option in line.options)]
        return tuple(sorted(better, key=lambda line: -line.likely))

    def _combined(self, lines: Sequence[Line]) -> Iterator[Line | None]:
        """Two and three of the best of `lines` together, at the bound; None where they cannot be had so."""
        best: list[Option] = []
        for line in lines:
            option = line.options[0]
            if sum(other.group == option.group for other in best) < _ALIKE:
                best.append(option)
        for count in range(2, TOGETHER + 1):
            for options in combinations(best[:_COMBINED], count):
                one_each = [option.group for option in options if option.change[0] != "techniques"]
                together = None
                if len(set(one_each)) == len(one_each):
                    with suppress(InputError):  # they make no sense together
                        together = self._with(*options)
                yield together

    def _with(self, *options: Option) -> Line:
        """At the bound."""
        return Line.of(options, self.base, self.run(with_options(self.asked, options)), self.aim)


def _numbers(one: Generated) -> dict[str, Any]:
    expected = asdict(one.expected) if one.expected else dict.fromkeys(asdict(one.times))
    return {
        **asdict(one.times), **{f"expected_{name}": value for name, value in expected.items()},
        "memory_bytes": one.memory_bytes, "fits": one.fits, "bound": one.bound,
    }  # fmt: skip


def _line(line: Line) -> dict[str, Any]:
    return {
        "techniques": [option.name for option in line.options], "gain": line.gain,
        "expected_gain": line.expected, "touches": str(line.touches), "relieves": line.relieves,
        **{f"{name}_ratio": getattr(line, name) for name in _AMOUNTS}, **_numbers(line.result),
    }  # fmt: skip
