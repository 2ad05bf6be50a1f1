"""What a pass is expected to take of the kernels that a library has on a device.

Of those that it has for an operator, the one is expected that is fastest at its shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Final

import numpy as np

from ..errors import InputError
from ..forms import Num
from ..hardware import Hardware
from ..resource import matrix, vector
from ..roofline import OperatorEstimate, Plan
from ..transforms.offload import HOST
from ..workload import Workload
from .device import Device
from .engines import IDLE, Engine
from .expected import ExpectedLaunch, ExpectedPass, together
from .families import FAMILIES, Stack
from .families._family import Array
from .launches import Kernel, Launch, launches
from .library import ALIKE, Library, key_of
from .profile import Profile
from .sources import unknown
from .transfer import Choice, Expectation, bound_only, choose, reached

_FAMILIES: Final = 3  # that a library must have been measured in, to stand for a device when none is asked for
_REMEMBERED: Final = 256  # points of a workload up to which kernels are looked up before they are worked out
_MOST: Final = 1 << 13  # kernels that are remembered
# Powers of their number by which devices on one host get in each other's way: from none, where each has its own way
# through switches, to somewhat more than measured of eight L40S on two sockets (1.84). A ring passes each link once, so
# devices that reach each other directly share no more than the way between sockets. The middle was fitted to what four
# and eight L40S serve in TensorRT-LLM's tables, and held to their A100 with PCIe (tests/test_server_tables.py).
_CROWDS: Final = (0.0, 0.25, 2.0)


class Kernels(Library):
    """The kernels of a library on a device, and what they take.

    library, profiles  as those of Library
    engine             whose kernels are as much faster, and whose host adds to each pass
    """

    def __init__(
        self,
        hardware: Hardware,
        library: str = "",
        profiles: Sequence[Profile] = (),
        engine: Engine | None = None,
    ) -> None:
        super().__init__(hardware, library, profiles)
        self.host = engine.host if engine else IDLE
        self.factor = engine.kernels if engine else 1.0
        self.half = "bf16" if {matrix("bf16"), vector("bf16")} & hardware.rates.keys() else "fp16"
        self._choices: dict[tuple[str, Stack, bool], Choice | str] = {}
        self._known: dict[object, ExpectedLaunch | None] = {}  # by kernel and shapes, which layers and settings share

    @cached_property
    def _elsewhere(self) -> Device | str:
        """The same where it talks to others over its host, as cards do: whose parameters are carried over then."""
        device = self.device
        if isinstance(device, str):
            return device
        name = device.name if device.hosted else f"{device.name} over its host"
        link = self.hardware.numbers.get(f"{HOST}.bandwidth", 0.0)
        return replace(device, name=name, link=link, hosted=True, stacked=False)

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
            source = unknown(f"{launch.remark}, at least {found.source}")
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
        kernel = self.run_as(kernel)
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

    def _fastest(self, kernel: Kernel, chosen: Array) -> ExpectedLaunch | None:
        """In the workloads `chosen`; None where that cannot be known."""
        columns = kernel.columns(chosen)
        able = [each for stack in self.able(kernel) if (each := self._alternative(kernel, stack, columns))]
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
            if kernel.hosted and not any(key_of(e) in self.given for e in choice.entries):
                found = _elsewhere(choice, columns, device, stack)
            else:
                found = reached(choice, FAMILIES[kernel.family], columns, device, stack)
        except InputError as error:
            self._choices[kernel.family, stack, kernel.hosted] = str(error)
            return None
        return _Alternative(found=found, beyond=choice.entries[0].beyond(columns))

    def others(self, kernel: Kernel) -> tuple[str, ...]:
        """Libraries whose kernels stand in, where its own has none for such work and they differ."""
        kernel = self.run_as(kernel)
        choices = [] if kernel.family in ALIKE else [self._choice(kernel, stack) for stack in self.able(kernel)]
        libraries = {e.stack.library: None for c in choices if isinstance(c, Choice) for e in c.entries}
        return () if self.library in libraries else tuple(libraries)

    def _why(self, kernel: Kernel) -> str:
        choice = self._choice(kernel, self.able(kernel)[0])
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
