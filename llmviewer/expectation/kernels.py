"""Expected times of passes, from the kernels that a library launches on a device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
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
from .engines import IDLE, PLAIN, Engine, ExpertsKernel, Host, LaunchRules
from .expected import ExpectedLaunch, ExpectedPass, combined_launches
from .families.base import Array, Implementation
from .launches import AMOUNTS, KernelSequence, LibraryKernel, launches
from .launches.whole import ON_HOST
from .profile import Profile
from .sources import CALIBRATED, bound_only_label, stand_in_label
from .times import EXPERTS, KernelBounds, KernelTimes
from .transfer import bound_only, stand_in_error
from .whole_passes import HOST_ENGINE, EngineKernels, backend_of

# Of the bound, the least that is expected of kernels that were not measured themselves. Rows of the public tables that
# the profiles of other devices expect within 10 % of their bounds took 1.05 (products) to 1.12 times as long (experts).
_NEAREST: Final = 1.05
_PRODUCTS: Final = ("gemm", EXPERTS)  # families of matrix products with weights


@frozen(kw_only=True)
class PassLaunches:
    """A pass as launches of a library.

    bounds  lower bound of one launch of each operator, [point] or [device, point]; blocks with equal operators share
            one array [s]
    prefills    whether it prefills, so that no CUDA graph of decode steps replays it
    prefilling  whether each point does, where points of both kinds are evaluated together
    """

    operators: Sequence[OperatorEstimate | PlannedOperator]
    launches: Sequence[KernelSequence]
    bounds: Sequence[Array]
    prefills: bool
    prefilling: Num

    @classmethod
    def of(
        cls, rows: Sequence[OperatorEstimate], launches: Sequence[KernelSequence], workload: Workload
    ) -> PassLaunches:
        """The pass of the operators `rows`."""
        bounds = [np.atleast_1d(np.asarray(row.unprefetched_s, dtype=float)) for row in rows]
        size = max((bound.size for bound in bounds), default=1)  # of operators that do the same at all points, 1
        bounds = [bound if bound.size == size else np.broadcast_to(bound, (size,)) for bound in bounds]
        prefills = workload.prefills
        return cls(operators=rows, launches=launches, bounds=bounds, prefills=prefills, prefilling=prefills)

    @cached_property
    def groups(self) -> list[tuple[list[KernelSequence], Sequence[Array], Array]]:
        """Groups of equal launches, which have the same kernels for operators that blocks share; the bounds of their
        operators, and the sum of these.
        """
        launches_by_key: dict[object, list[KernelSequence]] = {}
        for launch in self.launches:
            same = id(launch.kernels), id(launch.concurrent), launch.remark
            launches_by_key.setdefault((*same, *(id(self.bounds[m]) for m in launch.members)), []).append(launch)
        return [(launches, *self._bounds(launches[0])) for launches in launches_by_key.values()]

    def _bounds(self, launch: KernelSequence) -> tuple[Sequence[Array], Array]:
        if len(launch.members) == 1:
            bound = self.bounds[launch.members[0]]
            return [bound], bound
        each = np.broadcast_arrays(*(self.bounds[m] for m in launch.members))
        return each, sum(each[1:], start=each[0])

    def on_devices(self, devices: list[int]) -> PassLaunches:
        """The pass on some of several devices, by their indices."""
        distinct = {id(bound): bound for bound in self.bounds}
        bounds = {key: bound[devices] for key, bound in distinct.items()}
        return replace(self, bounds=[bounds[id(bound)] for bound in self.bounds])

    def kernel_bounds(self, device: Any = ...) -> Iterator[KernelBounds]:
        """Yields the kernels of all launches, on a device of several by its index."""
        for same, _, total_bound in self.groups:
            for kernel in same[0].all_kernels:
                yield KernelBounds(kernel, total_bound[device])


class Kernels(KernelTimes):
    """Expected times of the kernels of a library on a device.

    library, profiles  as in Library
    engine             serving engine, which scales the times of kernels and adds host time to each pass
    host               CPU that runs launches beside its own memory
    """

    def __init__(
        self,
        hardware: Hardware,
        library: str = "",
        profiles: Sequence[Profile] = (),
        engine: Engine | None = None,
        host: Hardware | None = None,
    ) -> None:
        super().__init__(hardware, library, profiles)
        self.host = engine.host if engine else IDLE
        self.limited_products = engine.limited_products if engine else ""
        self.has_staged_steps = bool(engine and engine.has_staged_steps)
        self._launching = engine.launching if engine else PLAIN
        self.cpu = host
        self.factor = engine.kernels if engine else 1.0
        self._backend = _backend(engine, hardware)
        self._experts_rules = engine.experts if engine else ()
        self._experts_kernel = engine.options.experts_kernel.lower() if engine else ""
        self.half = "bf16" if {matrix("bf16"), vector("bf16")} & hardware.rates.keys() else "fp16"

    @cached_property
    def device(self) -> Device | str:
        """Device of the kernel models, or the reason why its kernels cannot be modelled."""
        return self._backend if isinstance(self._backend, str) else super().device

    def implementations_for(self, kernel: LibraryKernel) -> tuple[Implementation, ...]:
        """Implementations that can do the work of `kernel`; of experts those that the engine is told to use.

        Raises InputError if no measured kernel of experts has that name.
        """
        implementations = super().implementations_for(kernel)
        if not self._experts_kernel or kernel.family != EXPERTS:
            return implementations
        matching = tuple(one for one in implementations if self._experts_kernel in one.kernel.lower())
        if not matching:
            names = ", ".join(sorted(one.kernel for one in implementations if one.kernel)) or "none that has a name"
            raise InputError(
                f"experts_kernel must be part of the name of a kernel that was measured for these experts, {names}; "
                f"got {self._experts_kernel!r}"
            )
        return matching

    @cached_property
    def selected_experts(self) -> Sequence[ExpertsKernel]:
        """Kernels of experts that the engine selects on the device."""
        instructions = "" if isinstance(self.device, str) else matrix_instructions(self.device)
        return [one for one in self._experts_rules if instructions in one.on]

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
            factor=self.factor, host=self.host, limited_products=self.limited_products, reason=self.reason,
            staged=self.has_staged_steps,
        )  # fmt: skip

    @cached_property
    def launching(self) -> LaunchRules:
        """Division of operators among launches by the engine on the device."""
        device = self.device
        instructions = "" if isinstance(device, str) else matrix_instructions(device)
        fusions = tuple(one for one in self._launching.fusions if not one.on or instructions in one.on)
        return replace(self._launching, fusions=fusions)

    @property
    def launch_key(self) -> tuple[Hashable, ...]:
        """Key of launches_for() of the same operators, by which devices that launch alike are equal."""
        return self.library, self.half, self.launching

    @property
    def has_kernels(self) -> bool:
        return isinstance(self._backend, EngineKernels) or super().has_kernels

    @property
    def is_unmeasured(self) -> bool:
        """Whether no kernel, or whole pass of the engine, was measured on the device itself."""
        return (
            self._backend.is_unmeasured(self.hardware)
            if isinstance(self._backend, EngineKernels)
            else super().is_unmeasured
        )

    @property
    def is_unknown(self) -> bool:
        """Whether no time of any kernel is known, nor of whole passes."""
        return isinstance(self.device, str) and not isinstance(self._backend, EngineKernels) and self.cpu is None

    def stand_in_libraries(self, kernel: LibraryKernel) -> tuple[str, ...]:
        return () if kernel.family == AMOUNTS else super().stand_in_libraries(kernel)

    def launches_for(
        self,
        rows: Sequence[OperatorEstimate],
        workload: Workload,
        known_launches: dict[object, KernelSequence] | None = None,
    ) -> tuple[KernelSequence, ...]:
        """The launches for operators; equal on devices with the same `launch_key`.

        known_launches  as in launches()
        """
        return launches(
            rows, workload, library=self.library, half=self.half, rules=self.launching, known_launches=known_launches
        )

    def expect(self, rows: Sequence[OperatorEstimate], workload: Workload) -> ExpectedPass:
        """Expected time of one launch of every operator; at least its bound, without prefetching of offloaded data."""
        return self.expect_each([(rows, workload)])[0]

    def expect_each(self, passes: Sequence[tuple[Sequence[OperatorEstimate], Workload]]) -> list[ExpectedPass]:
        """expect() of several passes, with one evaluation of their kernels."""
        return list(
            self.expect_passes(
                [PassLaunches.of(rows, self.launches_for(rows, workload), workload) for rows, workload in passes]
            )
        )

    def expect_passes(self, launched: Sequence[PassLaunches]) -> Iterator[ExpectedPass]:
        """Yields expected times of several passes, with one evaluation of their kernels."""
        times = self.times([kernel_bounds for one in launched for kernel_bounds in one.kernel_bounds()])
        for one in launched:
            yield self.launcher.launch_all(one, times)

    def expect_plan(self, plan: Plan, workload: Workload) -> ExpectedPass:
        """Expected time of all operators of a plan."""
        return self.expect(plan.estimate(workload).operators, workload)

    def _evaluate(self, kernels: Sequence[KernelBounds]) -> list[ExpectedLaunch | None]:
        """Expected times of kernels, those of whole passes by the factors of the engine's backend."""
        rest = iter(super()._evaluate([one for one in kernels if one.kernel.family != AMOUNTS]))
        return [self._by_amounts(one) if one.kernel.family == AMOUNTS else next(rest) for one in kernels]

    def _by_amounts(self, kernel: KernelBounds) -> ExpectedLaunch | None:
        if not kernel.chosen.any():
            return None
        if kernel.kernel.implementation.library == ON_HOST:
            assert self.cpu
            launch = backend_of(HOST_ENGINE, self.cpu).expect(kernel.kernel, self.cpu)
        elif isinstance(self._backend, EngineKernels):
            launch = self._backend.expect(kernel.kernel, self.hardware)
        else:
            return None
        expected, low, high = (
            np.where(kernel.chosen, time_s, 0.0) for time_s in (launch.expected, launch.low, launch.high)
        )
        return launch.with_times(expected, low, high, launch.run_probability)


@frozen(kw_only=True)
class Launcher:
    """Times of launches from those of their kernels, on a device or on several at once.

    Several devices have bounds and times [device, point] and `cores` [device, 1]; they must be alike in all else here,
    in the kernels that are known, and in those that were measured on the device itself.

    per_query  whether kernels of latent attention read the cache for each new token of a sequence
    cores      of the device; nan if its kernels cannot be modelled
    factor     of the engine, on the times of kernels
    limited_products  data type of the engine's products that leave the cores of overlapping collectives free
    staged     whether overlapping halves of a batch take turns in fixed stages in steps without prefills
    reason     the reason for which a kernel is unknown
    """

    per_query: bool
    cores: Num
    factor: float
    host: Host
    limited_products: str
    staged: bool
    reason: Callable[[LibraryKernel], str]

    def launch_all(self, one: PassLaunches, times: Iterator[ExpectedLaunch | None]) -> ExpectedPass:
        """Expected pass from the times of its kernels."""
        launches: list[ExpectedLaunch | None] = [None] * len(one.operators)
        slowdown = self._slowdown(one)
        for same, bounds, total_bound in one.groups:
            kernel_times = {id(kernel): next(times) for kernel in same[0].all_kernels}
            expected = self._launch(same[0], total_bound, kernel_times)
            shares = [expected.share(bound, total_bound) for bound in bounds]
            if self._leaves_cores(same[0]) and np.any(slowdown):
                shares = [replace(share, slowdown_s=slowdown * share.expected) for share in shares]
            for launch in same:
                for place, share in zip(launch.members, shares, strict=True):
                    launches[place] = share
        expected_launches = tuple(launch for launch in launches if launch is not None)
        host = self.host.of_step(prefills=one.prefills)
        staged = np.logical_not(one.prefilling) if self.staged else False
        return ExpectedPass(operators=tuple(one.operators), launches=expected_launches, host=host, staged=staged)

    def _slowdown(self, one: PassLaunches) -> Num:
        """Share by which products take longer that leave the cores of overlapping collectives free."""
        if not self.limited_products or not np.any(one.prefilling):
            return 0.0
        cores_in_use = [
            launch.sending.cores
            for launch in one.launches
            if launch.sending and one.operators[launch.members[0]].operator.overlapped
        ]
        cores = max(cores_in_use, default=0.0)
        return np.where(one.prefilling, cores / (self.cores - cores), 0.0)

    def _leaves_cores(self, launch: KernelSequence) -> bool:
        return any(
            kernel.family in _PRODUCTS and kernel.implementation.dtype == self.limited_products
            for kernel in launch.kernels
        )

    def _launch(
        self, launch: KernelSequence, bound: Array, times: Mapping[int, ExpectedLaunch | None]
    ) -> ExpectedLaunch:
        """Expected launch from the times of its kernels, by their identities."""
        if not launch.sending or np.any(np.isnan(self.cores)):
            return self._at_least(bound, launch, bound, times)
        cores, start_s, reach, setup_s = launch.sending
        expected = self._at_least(np.where(bound > 0, start_s + setup_s + bound / reach, 0.0), launch, bound, times)
        return replace(expected, core_time_s=np.where(bound > 0, start_s, 0.0) + expected.expected * cores / self.cores)

    def _at_least(
        self, minimum_s: Array, launch: KernelSequence, bound: Array, times: Mapping[int, ExpectedLaunch | None]
    ) -> ExpectedLaunch:
        """Expected launch, clamped to at least `minimum_s`."""
        kernel_times = [part for kernel in launch.kernels if (part := _run(kernel, times, per_query=self.per_query))]
        if not kernel_times:
            why = launch.remark if not launch.kernels else self.reason(launch.kernels[0])
            result_launch = ExpectedLaunch.of(bound_only(bound, why), ())
            return replace(result_launch, expected=minimum_s, run_probability=launch.run_probability)
        concurrent_times = [part for kernel in launch.concurrent if (part := times[id(kernel)])]
        result = combined_launches(kernel_times, np.add)
        result = (
            combined_launches([result, combined_launches(concurrent_times, np.add)], np.maximum)
            if concurrent_times
            else result
        )
        factor = self.factor * launch.run_probability
        kernels_s = result.expected * factor
        measured = result.source.startswith(CALIBRATED) and not launch.stand_in_class
        expected = np.maximum(kernels_s, minimum_s if measured else _NEAREST * minimum_s)
        longer = factor * np.divide(expected, kernels_s, out=np.ones_like(bound), where=kernels_s > 0)
        low, high = (np.maximum(side * longer, bound) for side in (result.low, result.high))
        result_launch = result.with_times(expected, low, high, launch.run_probability)
        if launch.stand_in_class:
            result_launch = result_launch.widened(stand_in_error(launch.kernels[0].family, launch.stand_in_class))
            result_launch = replace(result_launch, low=np.maximum(result_launch.low, bound))
        if launch.partial:
            source = bound_only_label(f"{launch.remark}, at least {result_launch.source}")
            return replace(
                result_launch, high=np.full_like(result_launch.high, np.inf), source=source, implementations=()
            )
        return (
            replace(result_launch, source=stand_in_label(launch.remark, result_launch.source))
            if launch.remark
            else result_launch
        )


def _backend(engine: Engine | None, hardware: Hardware) -> EngineKernels | str | None:
    """Backend of an engine with measured whole passes, or the reason why a device has none; None for other engines."""
    if engine is None or not engine.has_whole_passes:
        return None
    try:
        return backend_of(engine.name, hardware)
    except InputError as error:
        return str(error)


def _run(
    kernel: LibraryKernel, times: Mapping[int, ExpectedLaunch | None], *, per_query: bool
) -> ExpectedLaunch | None:
    """Expected time of a kernel, or of its alternative where that is faster, or query by query."""
    launch = times[id(kernel)]
    instead, query_by_query = (times[id(other)] if other else None for other in (kernel.alternative, kernel.per_query))
    if launch and query_by_query:
        slower = query_by_query.spanning(launch) if per_query else launch.spanning(query_by_query)
        slower = slower.capped_by(instead, kernel.alternative.where) if kernel.alternative and instead else slower
        why = "one query at a time" if per_query else "few queries as further heads"
        return replace(
            slower, source=stand_in_label(f"{why}, as no kernel with several queries was measured", slower.source)
        )
    return launch.or_faster(instead, kernel.alternative.where) if launch and kernel.alternative and instead else launch
