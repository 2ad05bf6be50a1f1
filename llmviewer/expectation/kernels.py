"""What a pass is expected to take of the kernels that a library has on a device.

Of those that it has for an operator, the one is expected that is fastest at its shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Final

import numpy as np

from ..errors import InputError, suggest
from ..forms import Num
from ..hardware import Hardware
from ..resource import matrix, vector
from ..roofline import OperatorEstimate, Plan
from ..transforms.offload import HOST
from ..workload import Workload
from .device import Device, of
from .engines import IDLE, Engine
from .expected import BOUND_ONLY, ExpectedLaunch, ExpectedPass, together
from .families import FAMILIES, Stack
from .families._family import Array
from .formats import SIMILAR, TYPES, WEIGHTS_ONLY
from .index import index
from .launches import Kernel, Launch, launches
from .profile import Entry, Profile
from .transfer import Choice, Expectation, bound_only, choose, nearest, reached, twins

_FAMILIES: Final = 3  # that a library must have been measured in, to stand for a device when none is asked for
_REMEMBERED: Final = 256  # points of a workload up to which kernels are looked up before they are worked out
_MOST: Final = 1 << 13  # kernels that are remembered
# Powers of their number by which devices on one host get in each other's way: from none, where each has its own way
# through switches, to somewhat more than measured of eight L40S on two sockets (1.84). A ring passes each link once, so
# devices that reach each other directly share no more than the way between sockets. The middle was fitted to what four
# and eight L40S serve in TensorRT-LLM's tables, and held to their A100 with PCIe (tests/test_server_tables.py).
_CROWDS: Final = (0.0, 0.25, 2.0)


class Kernels:
    """The kernels of a library on a device.

    library   "" is the one that was measured in most families on the device, by `profiles` where they have it, or its
              nearest relatives' where none was; of several the one known best on all devices, so that they are compared
              by kernels of the same
    profiles  before those that ship
    engine    whose kernels are as much faster, and whose host adds to each pass
    """

    def __init__(
        self,
        hardware: Hardware,
        library: str = "",
        profiles: Sequence[Profile] = (),
        engine: Engine | None = None,
    ) -> None:
        self.hardware = hardware
        self.host = engine.host if engine else IDLE
        self.factor = engine.kernels if engine else 1.0
        self.given: dict[tuple[str, str, Stack], Entry] = {}
        for e in (e for profile in profiles for e in profile.entries):
            self.given.setdefault(_key(e), e)
        self.entries = (*self.given.values(), *(e for e in index().entries if _key(e) not in self.given))
        self.asked = library
        self.own = [e for e in self.entries if e.device == hardware.name]
        self.half = "bf16" if {matrix("bf16"), vector("bf16")} & hardware.rates.keys() else "fp16"
        self._choices: dict[tuple[str, Stack, bool], Choice | str] = {}
        self._stacks: dict[tuple[str, Stack, bool], tuple[Stack, ...]] = {}
        self._known: dict[object, ExpectedLaunch | None] = {}  # by kernel and shapes, which layers and settings share

    @cached_property
    def device(self) -> Device | str:
        """What kernels are laid out on, or why they cannot be."""
        if self.hardware.kind not in ("gpu", "") and not self.own:
            return f"no kernel was measured on {self.hardware.name}, nor on a similar device"
        try:
            return of(self.hardware)
        except InputError as error:
            return str(error)

    @cached_property
    def _elsewhere(self) -> Device | str:
        """The same where it talks to others over its host, as cards do: whose parameters are carried over then."""
        device = self.device
        if isinstance(device, str):
            return device
        name = device.name if device.hosted else f"{device.name} over its host"
        link = self.hardware.numbers.get(f"{HOST}.bandwidth", 0.0)
        return replace(device, name=name, link=link, hosted=True, stacked=False)

    @property
    def library(self) -> str:
        return self.asked or next(iter(self.usual), "")

    @cached_property
    def usual(self) -> tuple[str, ...]:
        """Libraries that can stand for the device where none is asked for, the one that does first."""
        mine = [e for e in self.given.values() if e.device == self.hardware.name]
        device = self.device
        related = [] if self.own or isinstance(device, str) else nearest(self.entries, device)
        families: dict[str, set[str]] = {}
        for e in mine or self.own or related:
            families.setdefault(e.stack.library, set()).add(e.family)
        errors = {
            name: np.mean([e.held_out.mape for e in self.entries if e.stack.library == name]) for name in families
        }
        able = [name for name, found in families.items() if mine or len(found) >= _FAMILIES]
        return tuple(sorted(able, key=lambda name: (-len(families[name]), errors[name])))

    @property
    def carried(self) -> bool:
        """Whether none was measured on the device itself."""
        return not self.own

    def laid(self, rows: Sequence[OperatorEstimate], workload: Workload) -> tuple[Launch, ...]:
        """What the library launches for operators; the same on all devices that share `library` and `half`."""
        return launches(rows, workload, library=self.library, half=self.half)

    def expect(
        self, rows: Sequence[OperatorEstimate], workload: Workload, laid: Sequence[Launch] | None = None
    ) -> ExpectedPass:
        """What one launch of every operator is expected to take; never less than its bound.

        laid  what laid() gives, where that is known already
        """
        bounds = [np.atleast_1d(np.asarray(row.time_s, dtype=float)) for row in rows]
        found: list[ExpectedLaunch | None] = [None] * len(rows)
        for launch in self.laid(rows, workload) if laid is None else laid:
            mine = np.broadcast_arrays(*(bounds[m] for m in launch.members))
            whole = sum(mine[1:], start=mine[0])
            each = self._launch(launch, whole)
            for place, bound in zip(launch.members, mine, strict=True):
                found[place] = each.share(bound, whole)
        made = tuple(each for each in found if each is not None)
        return ExpectedPass(operators=tuple(rows), launches=made, host=self.host)

    def run(self, plan: Plan, workload: Workload) -> ExpectedPass:
        """The same of all operators of a plan."""
        return self.expect(plan.estimate(workload).operators, workload)

    def _launch(self, launch: Launch, bound: Array) -> ExpectedLaunch:
        parts = [self._run(kernel, bound) for kernel in launch.kernels]
        known = [part for part in parts if part]
        if not known:
            why = launch.remark if not launch.kernels else self._why(launch.kernels[0])
            return replace(ExpectedLaunch.of(bound_only(bound, why), ()), often=launch.often)
        beside = [part for kernel in launch.beside if (part := self._kernel(kernel, bound))]
        result = together(known, np.add)
        result = together([result, together(beside, np.add)], np.maximum) if beside else result
        factor = self.factor * launch.often
        whole = result.expected * factor
        lift = np.maximum(np.divide(bound, whole, out=np.ones_like(bound), where=whole > 0), 1)
        found = replace(
            result,
            expected=np.maximum(whole, bound),
            low=np.maximum(result.low * lift * factor, bound),
            high=np.maximum(result.high * lift * factor, bound),
            often=launch.often,
        )
        if launch.partial:
            source = f"{BOUND_ONLY}: {launch.remark}, at least {found.source}"
            return replace(found, high=np.full_like(found.high, np.inf), source=source, stacks=())
        return replace(found, source=f"{found.source}; {launch.remark}") if launch.remark else found

    def _run(self, kernel: Kernel, bound: Array) -> ExpectedLaunch | None:
        """A kernel, or what is run instead where that takes less time."""
        found, instead = self._kernel(kernel, bound), kernel.instead
        other = self._kernel(instead, bound) if found and instead else None
        return found.or_sooner(other, instead.where) if found and instead and other else found

    def _kernel(self, kernel: Kernel, bound: Array) -> ExpectedLaunch | None:
        """None where it is never run; 0 in the workloads in which it is not, all of which others are for."""
        chosen = np.broadcast_to(np.asarray(kernel.where), bound.shape) & (bound > 0)
        if not np.any(chosen):
            return None
        kernel = self._run_as(kernel)
        if bound.size > _REMEMBERED:
            return self._fastest(kernel, chosen)
        sizes = (_content(name, value) for name, value in kernel.shapes.items())
        key = (kernel.family, kernel.stack, kernel.hosted, chosen.tobytes(), *sizes)
        known = self._known  # of which another thread may begin a new one
        if key not in known:
            if len(known) > _MOST:
                self._known = known = {}
            known[key] = self._fastest(kernel, chosen)
        return known[key]

    def _run_as(self, kernel: Kernel) -> Kernel:
        """With weights alone as narrow, where no matrix unit multiplies its type and nobody measured that it does."""
        dtype = kernel.stack.dtype
        narrow = WEIGHTS_ONLY.get(dtype)
        if not narrow or matrix(TYPES[dtype].arithmetic) in self.hardware.rates:
            return kernel
        measured = any(e.stack.dtype == dtype for e in self.own)
        return kernel if measured else replace(kernel, stack=replace(kernel.stack, dtype=narrow))

    def _fastest(self, kernel: Kernel, chosen: Array) -> ExpectedLaunch | None:
        """In the workloads `chosen`; None where that cannot be known."""
        columns = kernel.columns(chosen)
        able = [each for stack in self._able(kernel) if (each := self._alternative(kernel, stack, columns))]
        if not able:
            return None
        found = reduce(_sooner, able).found
        stack = kernel.stack
        name = f"{kernel.family} {stack.dtype} {stack.kv_dtype} {' or '.join(each.found.source for each in able)}"
        if np.all(chosen):
            return ExpectedLaunch.of(found, (name,))
        full = {key: np.zeros(chosen.shape) for key in ("bound", "expected", "low", "high", "fixed")}
        for key, column in full.items():
            column[chosen] = getattr(found, key)
        return ExpectedLaunch.of(Expectation(source=found.source, **full), (name,))

    def _alternative(self, kernel: Kernel, stack: Stack, columns: Mapping[str, Array]) -> _Alternative | None:
        """What one of the kernels that a library has takes; None where that cannot be known."""
        choice = self._choice(kernel, stack)
        if isinstance(choice, str):
            return None
        device = self._elsewhere if kernel.hosted else self.device
        assert isinstance(device, Device)
        try:
            if kernel.hosted and not any(_key(e) in self.given for e in choice.entries):
                found = _elsewhere(choice, columns, device, stack)
            else:
                found = reached(choice, FAMILIES[kernel.family], columns, device, stack)
        except InputError as error:
            self._choices[kernel.family, stack, kernel.hosted] = str(error)
            return None
        return _Alternative(found=found, beyond=choice.entries[0].beyond(columns))

    def _why(self, kernel: Kernel) -> str:
        choice = self._choice(kernel, self._able(kernel)[0])
        return choice if isinstance(choice, str) else "not run"

    def _choice(self, kernel: Kernel, stack: Stack) -> Choice | str:
        """Whose parameters to use, or why there are none."""
        family, key = kernel.family, (kernel.family, stack, kernel.hosted)
        if key not in self._choices:
            device = self._elsewhere if kernel.hosted else self.device
            try:
                self._choices[key] = device if isinstance(device, str) else choose(family, device, stack, self.entries)
            except InputError as error:
                self._choices[key] = str(error)
        return self._choices[key]

    def _able(self, kernel: Kernel) -> tuple[Stack, ...]:
        """What does the work of a kernel, by the names that its library has on this device, where measured there.

        Where it was not, its kernels for this data type on the nearest relatives come before those of the library that
        was measured most here, and these before kernels for similar types. What only moves bytes, and collectives, are
        alike in all libraries.
        """
        plain = float(np.min(kernel.shapes.get("gated", 1.0))) == 0
        key = (kernel.family, kernel.stack, plain)
        if key not in self._stacks:
            stack, several = kernel.stack, kernel.family not in ("elementwise", "collectives")
            alike = [e for e in self.own if _alike(e, kernel, plain=plain)]
            mine = [e for e in alike if e.stack.library == stack.library]
            stacks = self._carried(kernel, stack.dtype, plain=plain, alone=True) if several and not mine else ()
            stacks = stacks or self._measured(kernel, mine or alike, several=several)
            for dtype in (stack.dtype, *SIMILAR.get(stack.dtype, ())) if several else ():
                for alone in (True, False):
                    stacks = stacks or self._carried(kernel, dtype, plain=plain, alone=alone)
            self._stacks[key] = stacks or (stack,)
        return self._stacks[key]

    def _measured(self, kernel: Kernel, alike: Sequence[Entry], *, several: bool) -> tuple[Stack, ...]:
        """Of those of the device that do the same work, the library of which most was measured; `several` if kernels
        of one differ in what they do.
        """
        ranked = sorted(alike, key=lambda e: (_key(e) not in self.given, -e.rows))
        mine = [e for e in ranked if e.stack.library == ranked[0].stack.library]
        asked = {"dtype": kernel.stack.dtype, "kv_dtype": kernel.stack.kv_dtype}
        wanted: tuple[Callable[[Entry], bool], ...] = (
            lambda e: (e.stack.dtype, e.stack.kv_dtype) == (kernel.stack.dtype, kernel.stack.kv_dtype),
            lambda e: _key(e) in self.given,
            lambda e: e.stack.kernel == kernel.stack.kernel,
        )
        for told in wanted:
            mine = list(filter(told, mine)) or mine
        return tuple(replace(e.stack, **asked) for e in (mine if several else mine[:1]))

    def _carried(self, kernel: Kernel, dtype: str, *, plain: bool, alone: bool) -> tuple[Stack, ...]:
        """Those of the nearest relatives for a data type, by the names that they have there, of their library alone or
        of any; none where that is not known, as nothing says then which of theirs it runs.
        """
        device, stack = self.device, kernel.stack
        if isinstance(device, str) or not stack.library:
            return ()
        like = replace(kernel, stack=replace(stack, dtype=dtype))
        alike = [e for e in self.entries if _alike(e, like, plain=plain)]
        near = nearest([e for e in alike if not alone or e.stack.library == stack.library], device)
        own = any(e.stack.library == stack.library for e in near)
        library = stack.library if own else max(near, key=lambda e: e.rows).stack.library if near else ""
        names = dict.fromkeys(e.stack.kernel for e in near if e.stack.library == library)
        return tuple(replace(stack, library=library, kernel=name) for name in names)


@dataclass(frozen=True, kw_only=True)
class _Alternative:
    """One of the kernels that can do the same work.

    beyond  how many sizes of a shape were not measured of it
    """

    found: Expectation
    beyond: Array


def _sooner(one: _Alternative, other: _Alternative) -> _Alternative:
    """The one that was measured nearer to a shape, or takes less time where that is alike, for every shape."""
    a, b = one.found, other.found
    first = (one.beyond < other.beyond) | ((one.beyond == other.beyond) & (a.expected <= b.expected))
    keys = ("bound", "expected", "low", "high", "fixed")
    best = {key: np.where(first, getattr(a, key), getattr(b, key)) for key in keys}
    source = a.source if 2 * np.count_nonzero(first) >= first.size else b.source
    return _Alternative(found=Expectation(source=source, **best), beyond=np.where(first, one.beyond, other.beyond))


def _elsewhere(choice: Choice, columns: Mapping[str, Array], device: Device, stack: Stack) -> Expectation:
    """Collectives over a host, by parameters of devices on another: how much those of one host take from each other is
    not theirs to tell. That holds for the same kind of device, too: eight L40S on the host that was measured all-reduce
    at a third of the pace, or less, at which TensorRT-LLM's tables have them serve.
    """
    found = []
    for crowd in _CROWDS:
        entries = tuple(replace(e, parameters={**e.parameters, "crowd": crowd}) for e in choice.entries)
        found.append(reached(replace(choice, entries=entries), FAMILIES["collectives"], columns, device, stack))
    few, some, many = found
    return replace(some, low=few.low, high=many.high, source=f"{some.source}, on another host")


def _content(name: str, value: Num) -> tuple[str, object]:
    """What tells a size of a shape from others."""
    return name, (value.dtype.char, value.tobytes()) if isinstance(value, np.ndarray) else value


def check_library(name: str, profiles: Sequence[Profile] = ()) -> str:
    """`name`, if kernels of such a library were measured.

    Raises InputError, naming those that were.
    """
    known = sorted({e.stack.library for e in index().entries} | {profile.library for profile in profiles})
    if name and name not in known:
        raise InputError(f"no kernels of a library {name!r} were measured; {suggest(name, known)}")
    return name


def _key(entry: Entry) -> tuple[str, str, Stack]:
    return entry.device, entry.family, entry.stack


def _alike(entry: Entry, kernel: Kernel, *, plain: bool) -> bool:
    """Whether an entry is of a kernel's family, types or their twins, and kind, which is the last word of its name."""
    stack = entry.stack
    if entry.family != kernel.family or not twins(entry, kernel.stack):
        return False
    if entry.family == "moe":
        return stack.kernel.endswith("nongated") == plain
    if entry.family.startswith("attention"):
        return stack.kind == kernel.stack.kind
    own, other = (name.rpartition(" ")[2] for name in (stack.kernel, kernel.stack.kernel))
    return own == other
