"""A measuring session within a time limit: ceilings of the machine, then launches, the most informative first."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Final

from ..devices.files import hardware_file, load_hardware
from ..errors import InputError
from ..expectation.device import Device, device_of
from ..records import frozen
from ..writing import write_text
from .backend import Backend, LaunchError, Sets, breaks
from .ceilings import ceilings, disturbed, disturbed_rates, rates
from .journal import SCHEMA, Journal
from .machine import Machine, Watch, with_rates
from .order import spread
from .problems import Problem, problems
from .timing import BusyError, Call, HungError, LaunchTimes, settled

# Various head layouts and widths; on GPUs also sliding windows, latent attention, experts and states of both kinds.
MODELS: Final = {
    "cpu": ("qwen3-0.6b", "llama-3.2-1b", "smollm2-360m"),
    "gpu": (
        "llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-12b", "deepseek-v2-lite", "qwen3-next-80b-a3b", "nemotron-nano-9b-v2",
    ),
}  # fmt: skip
DTYPES: Final = {
    "cpu": ("bf16",),
    "gpu": ("bf16", "fp8", "fp8_block", "sq", "int4_wo", "int8_wo", "w4a16_mxfp4"),
}
_MATRICES: Final = {"cpu": ("fp32", "bf16"), "gpu": ("bf16", "fp16", "tf32", "fp32", "fp8", "int8")}
# Parts of the time limit of a session.
_CEILING_PART: Final = 1 / 1000  # for each ceiling and pass
_CEILINGS_PART: Final = 0.1  # after which no further pass over the ceilings starts
_ROW_PART: Final = 1 / 800  # for each row
_TUNED_PART: Final = 1 / 60  # after which no further tiling is tried for a row
_BRIEF_PART: Final = 1 / 8000  # for each tiling tried
_LONGEST_PART: Final = 1 / 50  # of a launch with all its repetitions; longer ones are left out
_CEILING_PASSES: Final = {"cpu": 3, "gpu": 1}  # over the ceilings: other programs may disturb one on a CPU
_TUNING_PART: Final = 0.5  # of the time so far, that tuning may have taken
_MAX_TUNED_RATIO: Final = 0.99  # of the default tiling's time, that another must beat to exceed noise
_CALLS: Final = 6  # approximate minimum number of calls of a launch
_TOO_LONG: Final = "it takes too long for the time limit"
_MEMORY_PART: Final = 0.2  # of free memory, for the tensors of one launch; tuning holds those of four
_MAX_REASON: Final = 200  # most characters of an error in a reason
_MAX_FAILURES: Final = 20  # in a row, after which a session ends
_OUT_OF_MEMORY: Final = "it needs more memory than is free"
_BROKE_DEVICE: Final = "made the device unusable in an earlier run"


def backends(name: str) -> tuple[str, tuple[Backend, ...]]:
    """The kind of device, "cpu" or "gpu", and the backends of a name; auto: all that work on this machine.

    Raises InputError if torch or a GPU is missing.
    """
    try:
        import torch
    except ImportError:
        raise InputError("measuring needs torch: pip install 'llmviewer[kernels]'") from None
    from .torch_backend import TorchBackend
    from .triton_backend import TritonBackend

    gpu = torch.cuda.is_available()
    if name == "cpu" or (name == "auto" and not gpu):
        return "cpu", (TorchBackend("cpu"),)
    if not gpu:
        raise InputError(f"--backend {name} needs a GPU that torch can use; to measure the CPU give --backend cpu")
    if name == "torch":
        return "gpu", (TorchBackend("cuda"),)
    try:
        return "gpu", (TritonBackend(), TorchBackend("cuda"))
    except InputError:
        if name == "triton":
            raise
        return "gpu", (TorchBackend("cuda"),)


def select_problems(
    backends: Sequence[Backend],
    models: Sequence[str],
    families: Sequence[str],
    dtypes: Sequence[str],
    *,
    every: bool = False,
) -> list[Problem]:
    """The launches to measure that the backends have kernels for.

    every  whether each data type must have a kernel

    Raises InputError if a model is unknown or there is no kernel.
    """
    backend_problems = [one for backend in backends for one in backend.own() if one.dtype in dtypes]
    candidates = [one for one in (*problems(models, dtypes), *backend_problems) if one.family in families]
    able = [one for one in candidates if any(backend.kernels(one) for backend in backends)]
    missing = [dtype for dtype in dtypes if dtype not in {one.dtype for one in able}]
    if missing and (every or not able):
        raise InputError(
            f"{' and '.join(backend.framework for backend in backends)}: no kernel of {', '.join(families)} in "
            f"{missing[0]} at shapes of {', '.join(models)}"
        )
    return able


def in_order(alike: Sequence[Problem]) -> list[Problem]:
    """Problems of one kind, the most informative sizes first."""
    names = {name: None for problem in alike for name, _ in problem.sizes}
    points = [[dict(problem.sizes).get(name, 0) for name in names] for problem in alike]
    return [alike[i] for i in spread(points)]


@frozen(kw_only=True)
class KernelProblem:
    """Kernel of a backend for a problem."""

    backend: Backend
    kernel: str
    problem: Problem

    def __str__(self) -> str:
        """Such as "triton gemv gemm bf16 M=1 N=4096 K=4096", which identifies a row."""
        sizes = (f"{name}={size}" for name, size in self.problem.sizes)
        return " ".join(filter(None, (self.backend.framework, self.kernel, *self.problem.kind[1:], *sizes)))

    @property
    def kind(self) -> tuple[str, ...]:
        """Properties shared with launches that differ only in size."""
        return self.backend.framework, self.kernel, *self.problem.kind


class _Kind:
    """Launches of one kernel in one data type, the most informative sizes first.

    waiting  launches not yet measured, by str(KernelProblem)
    bounds   lower bound of each at the measured ceilings [s]; empty before `bound_by`
    """

    def __init__(self, kernel_problems: Sequence[KernelProblem]) -> None:
        self._asked = kernel_problems
        self.waiting = {str(one): one for one in kernel_problems}
        self.bounds: dict[str, float] = {}
        self._largest = self._ratio = 0.0

    def bound_by(self, device: Device) -> None:
        """Sets the bounds to those of a device."""
        self.bounds = {str(one): one.problem.bound(device) for one in self._asked}

    def take(self, longest: float) -> KernelProblem | None:
        """The first launch expected to last at most `longest` seconds, given the efficiency of the largest so far."""
        for case in self.waiting:
            if _CALLS * self.bounds[case] * self._ratio <= longest:
                return self.waiting.pop(case)
        return None

    def learn(self, row: dict[str, Any]) -> None:
        """Note a measured row, which may be of an earlier run or of another kernel; updates its bound, as ceilings may
        have been measured again.
        """
        bound = self.bounds.get(row["case"])
        if bound is None:
            return
        row["ceiling_us"] = bound * 1e6
        self.waiting.pop(row["case"], None)
        if bound >= self._largest:
            self._largest, self._ratio = bound, row["time_us"] * 1e-6 / bound


@dataclass(kw_only=True)
class Session:
    """A measuring session and its state.

    seconds   time limit [s]
    tune      whether to try other tilings than the default and measure the fastest
    left_out  number of launches without a row, by reason
    unfit     number of tilings that failed, by reason
    put_off   number of launches postponed as other programs used the cores
    broken    launch or ceiling after which the device was unusable; "": none
    hung      error of a launch that does not end; kept, as freeing its tensors would wait for the launch
    trying    tiling being launched, as text; "": the default
    tuning    time spent on tuning [s]
    kinds     launches to measure, by kernel and data type
    start     start of the session, of monotonic() [s]
    """

    machine: Machine
    backends: Sequence[Backend]
    journal: Journal
    seconds: float
    tune: bool = True
    left_out: Counter[str] = field(default_factory=Counter)
    unfit: Counter[str] = field(default_factory=Counter)
    put_off: int = 0
    broken: str = ""
    hung: HungError | None = None
    trying: str = ""
    tuning: float = 0.0
    kinds: list[_Kind] = field(default_factory=list)
    start: float = field(default_factory=monotonic)

    @property
    def elapsed(self) -> float:
        return monotonic() - self.start

    def measure_ceilings(self, progress: Callable[[str], None]) -> None:
        """Measure ceilings that the journal lacks or that other programs disturbed."""
        if not self.journal.complete:
            self.journal.ceilings.clear()
        elif not disturbed(self.journal.ceilings):
            return
        try:
            self._measure_ceilings(progress)
        except Exception as error:
            if not breaks(error):
                raise
            measured = self.journal.ceilings
            self._give_up(error, f"the ceiling {measured[-1].what}" if measured else "the start, before any ceiling")

    def _measure_ceilings(self, progress: Callable[[str], None]) -> None:
        machine = self.machine
        dtypes, limit_s = _MATRICES[machine.kind], self.seconds * _CEILING_PART
        clock, measured = self.backends[-1].clock, self.journal.ceilings
        known_names = {one.name for one in measured} - disturbed(measured).keys()  # from earlier runs
        for number in range(_CEILING_PASSES[machine.kind]):
            if number and self.elapsed > _CEILINGS_PART * self.seconds:
                break
            for one in ceilings(
                machine.torch, clock, cache=machine.cache, dtypes=dtypes, limit_s=limit_s, known_names=known_names
            ):
                self.journal.ceiling(one)
                progress(one.what)
        self.journal.ceilings_complete()

    def _give_up(self, error: Exception, after: str) -> None:
        self.hung = error if isinstance(error, HungError) else None
        self.broken = after

    @property
    def rates(self) -> dict[str, float]:
        return rates(self.journal.ceilings, self.journal.rows, kind=self.machine.kind, cache=self.machine.cache)

    def hardware(self) -> Path:
        """Writes a hardware file with the measured rates to the folder of the journal, and returns its path.

        A device with a shipped file gets a copy, named NAME-measured, with ceilings in place of datasheet rates; other
        devices get a draft with the name that rows have. Ceilings that other programs disturbed replace no number.
        """
        import yaml

        machine, year = self.machine, datetime.now(tz=UTC).year
        low = disturbed_rates(self.journal.ceilings, kind=machine.kind, cache=machine.cache)
        if machine.document is not None:
            document = with_rates(
                machine.document, self.rates, year=year, keep_higher=machine.kind == "cpu", disturbed=low
            )
            document |= {"aliases": [machine.name.partition("-")[2] or machine.name]}  # tables drop the maker
        else:
            text = hardware_file(machine.hardware).read_text(encoding="utf-8")
            document = with_rates(yaml.safe_load(text), self.rates, year=year, keep_higher=False, disturbed=low)
            document |= {"name": f"{document['name']}-measured", "aliases": []}
        folder = self.journal.folder / "hardware"
        folder.mkdir(exist_ok=True)
        path = folder / f"{document['name']}.yaml"
        write_text(path, yaml.safe_dump(document, sort_keys=False, width=120))
        return path

    def judge(self) -> None:
        """Bounds all rows by the ceilings as they are now, which rows may have raised."""
        device = device_of(load_hardware(str(self.hardware())))
        for kind in self.kinds:
            kind.bound_by(device)
            for row in self.journal.rows:
                kind.learn(row)

    def measure_kernels(self, problems: Sequence[Problem], progress: Callable[[str], None]) -> None:
        """Measure launches, one kind after another in turn, until the time limit or until all are measured."""
        watch = Watch(self.machine.kind)
        try:
            self._measure_kernels(problems, watch, progress)
        finally:
            watch.close()

    def _measure_kernels(self, problems: Sequence[Problem], watch: Watch, progress: Callable[[str], None]) -> None:
        self.kinds = self._kinds(problems)
        self.judge()
        turn = deque(self.kinds)
        wrong: dict[tuple[str, ...], str] = {}
        failures = 0
        while turn and self.elapsed < self.seconds and failures < _MAX_FAILURES:
            kind = turn.popleft()
            launch = kind.take(_LONGEST_PART * self.seconds)
            if launch is None:
                self.left_out.update({_TOO_LONG: len(kind.waiting)} if kind.waiting else {})
                continue
            turn.append(kind)
            progress(str(launch))
            self.trying = ""
            try:
                _check(launch, wrong)
                row = self._row(launch, kind.bounds[str(launch)], watch)
            except BusyError:
                kind.waiting[str(launch)] = launch  # tried again later, if there is time
                self.put_off += 1
                continue
            except Exception as error:  # noqa: BLE001 - launches may raise anything
                failures += 1
                self.left_out[
                    " ".join(f"{launch.backend.framework} {launch.kernel}: {error}".split())[:_MAX_REASON]
                ] += 1
                if breaks(error):
                    self._give_up(error, f"{launch} {self.trying}".rstrip())
                    self.journal.broke(launch.kind, self.trying)
                    break
                continue
            failures = 0
            self.journal.row(row)
            kind.learn(row)

    def _kinds(self, problems: Sequence[Problem]) -> list[_Kind]:
        """Launches not yet measured, by kernel and data type."""
        alike: dict[tuple[object, ...], list[Problem]] = defaultdict(list)
        for problem in problems:
            if problem.kept > _MEMORY_PART * self.machine.memory:
                self.left_out[_OUT_OF_MEMORY] += 1
            else:
                alike[problem.kind].append(problem)
        kinds = []
        for same in alike.values():
            order = in_order(same)
            for backend in self.backends:
                able = [(problem, backend.kernels(problem)) for problem in order]
                for name in sorted({name for _, names in able for name in names}):
                    launches = [
                        KernelProblem(backend=backend, kernel=name, problem=problem)
                        for problem, names in able
                        if name in names
                    ]
                    if (launches[0].kind, "") in self.journal.broken:
                        self.left_out[f"{' '.join(launches[0].kind[:2])} {_BROKE_DEVICE}"] += len(launches)
                    else:
                        kinds.append(_Kind(launches))
        return kinds

    def _row(self, launch: KernelProblem, bound: float, watch: Watch) -> dict[str, Any]:
        problem, backend, machine = launch.problem, launch.backend, self.machine
        max_sets = backend.room(problem, launch.kernel, _MEMORY_PART * machine.memory)
        if not max_sets:
            raise LaunchError(_OUT_OF_MEMORY)
        sets = Sets.of(problem.nbytes, machine.cache, max_sets)
        calls = backend.calls(problem, launch.kernel, sets.count)
        if not backend.finite(calls[0]()):
            raise LaunchError("its result is not finite")
        tiling, tried = None, 1
        if self.tune and self.tuning <= _TUNING_PART * self.elapsed:
            start = monotonic()
            calls, tiling, tried = self._fastest(launch, sets, calls)
            self.trying = "" if tiling is None else words(tiling)
            self.tuning += monotonic() - start
        watch.start()
        times = settled(backend.clock.sampler(calls), self.seconds * _ROW_PART)
        state = watch()
        return _columns(launch, machine, times, sets) | {
            "tiling": self.trying, "tried": tried, "ceiling_us": bound * 1e6,
            "clock_mhz": state.clock_mhz, "power_w": state.power_w, "temperature_c": state.temperature_c,
            "throttled": state.throttled,
        }  # fmt: skip

    def _fastest(self, launch: KernelProblem, sets: Sets, calls: Sequence[Call]) -> tuple[Sequence[Call], Any, int]:
        """(calls of the fastest tiling, that tiling, number of tilings tried).

        calls  those of the default tiling, for which the returned tiling is None
        """
        backend = launch.backend
        others = backend.tilings(launch.problem, launch.kernel)
        end = monotonic() + _TUNED_PART * self.seconds
        best, tiling, tried = self._brief(backend, calls) * _MAX_TUNED_RATIO if others else 0.0, None, 1
        for other in others:
            if monotonic() > end:
                break
            self.trying = words(other)
            if (launch.kind, self.trying) in self.journal.broken:
                self.unfit[f"{launch.kernel} {self.trying}: {_BROKE_DEVICE}"] += 1
                continue
            try:
                with self.journal.trying(launch.kind, self.trying):
                    launches = backend.calls(launch.problem, launch.kernel, sets.count, other)
                    time = self._brief(backend, launches)
            except Exception as error:
                if breaks(error):
                    raise
                reason = str(error).strip().partition("\n")[0]
                self.unfit[f"{launch.kernel} {self.trying}: {reason}"[:_MAX_REASON]] += 1
                continue
            tried += 1
            if time < best:
                best, calls, tiling = time, launches, other
        return calls, tiling, tried

    def _brief(self, backend: Backend, calls: Sequence[Call]) -> float:
        return settled(backend.clock.sampler(calls), _BRIEF_PART * self.seconds).median


def _check(launch: KernelProblem, wrong: dict[tuple[str, ...], str]) -> None:
    """Checks results once per kernel and data type. `wrong` caches errors, "" if there is none.

    Raises LaunchError if they are wrong.
    """
    if launch.kind not in wrong:
        wrong[launch.kind] = ""
        try:
            launch.backend.check(launch.problem, launch.kernel)
        except Exception as error:
            if breaks(error):
                raise
            wrong[launch.kind] = str(error) or type(error).__name__
    if wrong[launch.kind]:
        raise LaunchError(wrong[launch.kind])


def header(machine: Machine, backends: Sequence[Backend]) -> dict[str, Any]:
    """Properties that all rows of one folder share."""
    versions = {name: version for backend in backends for name, version in backend.versions.items()}
    return {
        "schema": SCHEMA, "gpu": machine.name, "device": machine.title, "driver": machine.driver, "versions": versions,
    }  # fmt: skip


def words(tiling: Any) -> str:
    """Such as "keys=128 splits=4"."""
    return " ".join(f"{one.name}={getattr(tiling, one.name)}" for one in fields(tiling))


def _columns(launch: KernelProblem, machine: Machine, times: LaunchTimes, sets: Sets) -> dict[str, Any]:
    return {
        "source": "llmviewer measure",
        "gpu": machine.name,
        "framework": launch.backend.framework,
        "version": launch.backend.version,
        "kernel": launch.kernel,
        **launch.problem.row,
        "case": str(launch),
        "moved_bytes": launch.problem.nbytes,
        "time_us": times.median * 1e6,
        "p20_us": times.p20 * 1e6,
        "p80_us": times.p80 * 1e6,
        "repeats": times.repeats,
        "disturbed": times.disturbed,
        "stat": "median",
        "loop": sets.loop,
        "private": 1,
        "eager": 0,  # replayed from a graph, or so long that launches do not count
        "schema": SCHEMA,
        "device": machine.title,
        "driver": machine.driver,
        **launch.backend.versions,
        "date": datetime.now(tz=UTC).isoformat(timespec="seconds"),
    }
