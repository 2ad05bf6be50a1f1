"""Expected times of passes, from the kernels that a library launches on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from ..devices.hardware import Hardware
from ..errors import InputError
from ..forms import Num
from ..records import frozen
from ..resource import matrix, vector
from ..roofline import OperatorEstimate, Plan, PlannedOperator
from ..workload import Workload
from .device import Device
from .device_similarity import matrix_instructions
from .engines import IDLE, Engine, Host
from .expected import ExpectedLaunch, ExpectedPass, combined_launches
from .families._family import Array
from .launches import AMOUNTS, KernelSequence, LibraryKernel, launches
from .profile import Profile
from .sources import CALIBRATED, bound_only_label, stand_in_label
from .times import KernelBounds, KernelTimes
from .transfer import bound_only, stand_in_error
from .whole_passes import EngineKernels, backend_of

# Of the bound, the least that is expected of kernels that were not measured themselves. Rows of the public tables that
# the profiles of other devices expect within 10 % of their bounds took 1.05 (products) to 1.12 times as long (experts).
_NEAREST: Final = 1.05


@frozen(kw_only=True)
class PassLaunches:
    """A pass as launches of a library.

    bounds  lower bound of one launch of each operator, [point] or [device, point]; blocks with equal operators share
            one array [s]
    """

    operators: Sequence[OperatorEstimate | PlannedOperator]
    launches: Sequence[KernelSequence]
    bounds: Sequence[Array]

    @classmethod
    def of(cls, rows: Sequence[OperatorEstimate], launches: Sequence[KernelSequence]) -> PassLaunches:
        """The pass of the operators `rows`."""
        bounds = [np.atleast_1d(np.asarray(row.unprefetched_s, dtype=float)) for row in rows]
        size = max((bound.size for bound in bounds), default=1)  # of operators that do the same at all points, 1
        bounds = [bound if bound.size == size else np.broadcast_to(bound, (size,)) for bound in bounds]
        return cls(operators=rows, launches=launches, bounds=bounds)

    @cached_property
    def groups(self) -> list[tuple[list[KernelSequence], Sequence[Array], Array]]:
        """Launches that take equally long, as they have the same kernels for operators that blocks share; the bounds of
        their operators, and of all of these together.
        """
        found: dict[object, list[KernelSequence]] = {}
        for launch in self.launches:
            same = id(launch.kernels), id(launch.concurrent), launch.remark
            found.setdefault((*same, *(id(self.bounds[m]) for m in launch.members)), []).append(launch)
        return [(launches, *self._bounds(launches[0])) for launches in found.values()]

    def _bounds(self, launch: KernelSequence) -> tuple[Sequence[Array], Array]:
        if len(launch.members) == 1:
            alone = self.bounds[launch.members[0]]
            return [alone], alone
        each = np.broadcast_arrays(*(self.bounds[m] for m in launch.members))
        return each, sum(each[1:], start=each[0])

    def on_devices(self, devices: list[int]) -> PassLaunches:
        """The same on some of several devices, by their indices."""
        distinct = {id(bound): bound for bound in self.bounds}
        bounds = {key: bound[devices] for key, bound in distinct.items()}
        return replace(self, bounds=[bounds[id(bound)] for bound in self.bounds])

    def kernel_bounds(self, device: Any = ...) -> Iterator[KernelBounds]:
        """Kernels whose times the launches are made of, on a device of several by its index."""
        for same, _, whole in self.groups:
            for kernel in same[0].all_kernels:
                yield KernelBounds(kernel, whole[device])


class Kernels(KernelTimes):
    """Expected times of the kernels of a library on a device.

    library, profiles  as in Library
    engine             serving engine, which scales the times of kernels and adds host time to each pass
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
        self._backend = _backend(engine, hardware)
        self.half = "bf16" if {matrix("bf16"), vector("bf16")} & hardware.rates.keys() else "fp16"

    @cached_property
    def device(self) -> Device | str:
        """The device as kernel models need it, or why kernels cannot be laid out on it."""
        return self._backend if isinstance(self._backend, str) else super().device

    @cached_property
    def launcher(self) -> Launcher:
        """Times of launches from those of kernels.

        Kernels of latent attention for tcgen05 read the cache for each new token of a sequence, in all libraries: "Each
        CTA handles one tokenQ by default for spec-decoding generation kernel" (NVIDIA/TensorRT-LLM,
        cpp/tensorrt_llm/kernels/trtllmGenKernels/fmha/fmhaKernels.h). Others take tokens as further rows of a tile
        (FlashMLA: rows are tokens times heads).
        """
        device = None if isinstance(self.device, str) else self.device
        return Launcher(
            per_query=device is not None and matrix_instructions(device) == "blackwell",
            cores=device.cores if device else np.nan,
            factor=self.factor, host=self.host, reason=self.reason,
        )  # fmt: skip

    @property
    def is_unmeasured(self) -> bool:
        """Whether nothing was measured on the device itself."""
        return (
            self._backend.is_unmeasured(self.hardware)
            if isinstance(self._backend, EngineKernels)
            else super().is_unmeasured
        )

    def stand_in_libraries(self, kernel: LibraryKernel) -> tuple[str, ...]:
        return () if kernel.family == AMOUNTS else super().stand_in_libraries(kernel)

    def launches_for(
        self, rows: Sequence[OperatorEstimate], workload: Workload, known: dict[object, KernelSequence] | None = None
    ) -> tuple[KernelSequence, ...]:
        """The launches for operators; equal on devices with the same `library` and `half`.

        known  as in launches()
        """
        return launches(rows, workload, library=self.library, half=self.half, known=known)

    def expect(self, rows: Sequence[OperatorEstimate], workload: Workload) -> ExpectedPass:
        """Expected time of one launch of every operator; at least its bound, without prefetching of offloaded data."""
        return self.expect_each([(rows, workload)])[0]

    def expect_each(self, passes: Sequence[tuple[Sequence[OperatorEstimate], Workload]]) -> list[ExpectedPass]:
        """expect() of several passes, with one evaluation of their kernels."""
        return list(
            self.expect_passes([PassLaunches.of(rows, self.launches_for(rows, workload)) for rows, workload in passes])
        )

    def expect_passes(self, launched: Sequence[PassLaunches]) -> Iterator[ExpectedPass]:
        """The same for several passes, with one evaluation of their kernels."""
        times = self.times([asked for one in launched for asked in one.kernel_bounds()])
        for one in launched:
            yield self.launcher.launch_all(one, times)

    def expect_plan(self, plan: Plan, workload: Workload) -> ExpectedPass:
        """Expected time of all operators of a plan."""
        return self.expect(plan.estimate(workload).operators, workload)

    def _evaluate(self, asked: Sequence[KernelBounds]) -> list[ExpectedLaunch | None]:
        """Expected times of kernels, those of whole passes by the factors of the engine's backend."""
        rest = iter(super()._evaluate([one for one in asked if one.kernel.family != AMOUNTS]))
        return [self._by_amounts(one) if one.kernel.family == AMOUNTS else next(rest) for one in asked]

    def _by_amounts(self, asked: KernelBounds) -> ExpectedLaunch | None:
        if not isinstance(self._backend, EngineKernels) or not asked.chosen.any():
            return None
        found = self._backend.expect(asked.kernel, self.hardware)
        expected, low, high = (
            np.where(asked.chosen, time_s, 0.0) for time_s in (found.expected, found.low, found.high)
        )
        return found.with_times(expected, low, high, found.run_probability)


@frozen(kw_only=True)
class Launcher:
    """Times of launches from those of their kernels, on a device or on several at once.

    Several devices have bounds and times [device, point] and `cores` [device, 1]; they must be alike in all else here,
    in the kernels that are known, and in those that were measured on the device itself.

    by_query  whether kernels of latent attention read the cache for each new token of a sequence
    cores     of the device; nan where kernels cannot be laid out on it
    factor    of the engine, on the times of kernels
    why       the reason why nothing is known of a kernel
    """

    per_query: bool
    cores: Num
    factor: float
    host: Host
    reason: Callable[[LibraryKernel], str]

    def launch_all(self, one: PassLaunches, times: Iterator[ExpectedLaunch | None]) -> ExpectedPass:
        """A pass, from the times of `one.kernels`."""
        launches: list[ExpectedLaunch | None] = [None] * len(one.operators)
        for same, bounds, whole in one.groups:
            kernel_times = {id(kernel): next(times) for kernel in same[0].all_kernels}
            expected = self._launch(same[0], whole, kernel_times)
            shares = [expected.share(bound, whole) for bound in bounds]
            for launch in same:
                for place, share in zip(launch.members, shares, strict=True):
                    launches[place] = share
        known = tuple(launch for launch in launches if launch is not None)
        return ExpectedPass(operators=tuple(one.operators), launches=known, host=self.host)

    def _launch(
        self, launch: KernelSequence, bound: Array, times: Mapping[int, ExpectedLaunch | None]
    ) -> ExpectedLaunch:
        """A launch, from the times of its kernels by their identities."""
        if not launch.sending or np.any(np.isnan(self.cores)):
            return self._at_least(bound, launch, bound, times)
        cores, start_s, reach = launch.sending
        expected = self._at_least(np.where(bound > 0, start_s + bound / reach, 0.0), launch, bound, times)
        return replace(expected, core_time_s=np.where(bound > 0, start_s, 0.0) + expected.expected * cores / self.cores)

    def _at_least(
        self, least: Array, launch: KernelSequence, bound: Array, times: Mapping[int, ExpectedLaunch | None]
    ) -> ExpectedLaunch:
        """A launch that is expected to take no less than `least`."""
        known = [part for kernel in launch.kernels if (part := _run(kernel, times, per_query=self.per_query))]
        if not known:
            why = launch.remark if not launch.kernels else self.reason(launch.kernels[0])
            found = ExpectedLaunch.of(bound_only(bound, why), ())
            return replace(found, expected=least, run_probability=launch.run_probability)
        beside = [part for kernel in launch.concurrent if (part := times[id(kernel)])]
        result = combined_launches(known, np.add)
        result = combined_launches([result, combined_launches(beside, np.add)], np.maximum) if beside else result
        factor = self.factor * launch.run_probability
        whole = result.expected * factor
        measured = result.source.startswith(CALIBRATED) and not launch.stand_in_class
        expected = np.maximum(whole, least if measured else _NEAREST * least)
        longer = factor * np.divide(expected, whole, out=np.ones_like(bound), where=whole > 0)
        low, high = (np.maximum(side * longer, bound) for side in (result.low, result.high))
        found = result.with_times(expected, low, high, launch.run_probability)
        if launch.stand_in_class:
            found = found.widened(stand_in_error(launch.kernels[0].family, launch.stand_in_class))
            found = replace(found, low=np.maximum(found.low, bound))
        if launch.partial:
            source = bound_only_label(f"{launch.remark}, at least {found.source}")
            return replace(found, high=np.full_like(found.high, np.inf), source=source, implementations=())
        return replace(found, source=stand_in_label(launch.remark, found.source)) if launch.remark else found


def _backend(engine: Engine | None, hardware: Hardware) -> EngineKernels | str | None:
    """The backend of an engine whose whole passes were measured, or why it has none for a device; None for others."""
    if engine is None or not engine.whole:
        return None
    try:
        return backend_of(engine.name, hardware)
    except InputError as error:
        return str(error)


def _run(
    kernel: LibraryKernel, times: Mapping[int, ExpectedLaunch | None], *, per_query: bool
) -> ExpectedLaunch | None:
    """A kernel, or another that is run instead: where that takes less time, or on devices that run it `by_query`."""
    found = times[id(kernel)]
    instead, apart = (times[id(other)] if other else None for other in (kernel.alternative, kernel.per_query))
    if found and apart:
        most = apart.spanning(found) if per_query else found.spanning(apart)
        most = most.capped_by(instead, kernel.alternative.where) if kernel.alternative and instead else most
        why = "a query at a time" if per_query else "few queries as so many heads"
        return replace(most, source=stand_in_label(f"{why}, of which no kernel was measured with several", most.source))
    return found.or_faster(instead, kernel.alternative.where) if found and kernel.alternative and instead else found
