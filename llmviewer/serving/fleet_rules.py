"""Rules of changes in a fleet: failures of replicas and what becomes of their requests, and autoscaling."""

from __future__ import annotations

from math import inf
from typing import Any, Final

from ..analyzing.disaggregation import link_bytes_per_s
from ..errors import InputError
from ..options import only
from ..parameters import KvLink
from ..records import frozen
from ..units import time_s
from .lengths import parse_count
from .options import FleetRuleOptions, SimulationOptions
from .policy import Policy
from .steps import Steps
from .traffic import Traffic

FAIL, RESTART, RECOMPUTE, MIGRATE = "fail", "restart", "recompute", "migrate"
RECOVERIES: Final = (FAIL, RESTART, RECOMPUTE, MIGRATE)
MAX_REPLICAS: Final = 10_000  # of an autoscaled fleet
_MAX_TIME_S: Final = 1e9


@frozen(kw_only=True)
class Outages:
    """Failures or spot pre-emptions of replicas, each replaced by another that starts at the notice. [s]

    mtbf_s    mean time between failures of a replica, exponentially distributed
    notice_s  time between the notice of a failure, from which on the replica gets no requests, and its end
    recovery  one of RECOVERIES: how its requests go on
    """

    mtbf_s: float
    notice_s: float
    recovery: str


@frozen(kw_only=True)
class Autoscaling:
    """Replicas by the load: as many as keep the unfinished requests of each at `target`, from `least` to `most`."""

    least: int
    most: int
    target: float


@frozen(kw_only=True)
class FleetRules:
    """Changes of a fleet while it serves.

    startup_s       time from the start of a replica until it serves requests [s]
    kv_bytes_per_s  bandwidth over which each device sends its KV cache to another replica; 0 without migration [B/s]
    seed            of random times of failures
    """

    startup_s: float
    kv_bytes_per_s: float
    seed: int
    outages: Outages | None
    scaling: Autoscaling | None

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments, as in the JSON document."""
        outages, scaling = self.outages, self.scaling
        return {
            "mtbf_s": outages.mtbf_s if outages else None, "notice_s": outages.notice_s if outages else None,
            "recovery": outages.recovery if outages else None,
            "autoscale": f"{scaling.least}-{scaling.most}" if scaling else None,
            "scale_target": scaling.target if scaling else None, "startup_s": self.startup_s,
        }  # fmt: skip


def changes_fleet(options: FleetRuleOptions) -> bool:
    """Whether replicas fail, or change in number."""
    return options["mtbf"] is not None or options["autoscale"] is not None


def fleet_rules(steps: Steps, traffic: Traffic, policy: Policy, options: SimulationOptions) -> FleetRules | None:
    """Rules of the options of simulate(); None if nothing changes.

    Raises InputError for invalid options, and for those that would change nothing.
    """
    values: dict[str, object] = dict(only(options, FleetRuleOptions))
    for name, other_name in {"notice": "mtbf", "recovery": "mtbf", "scale_target": "autoscale"}.items():
        if values[name] is not None and values[other_name] is None:
            raise InputError(f"{name} must be left out without {other_name}; got {values[name]!r}")
    mtbf, autoscale, startup = options["mtbf"], options["autoscale"], options["startup"]
    if not changes_fleet(options):
        if startup is not None:
            raise InputError(f"startup must be left out without mtbf or autoscale; got {startup!r}")
        return None
    _check_fleet("autoscale" if mtbf is None else "mtbf", steps, policy, options["prefill_replicas"])
    if autoscale is not None and options["replicas"] != 1:
        raise InputError(
            f"replicas must be left out with autoscale, which sets their number; got {options['replicas']}"
        )
    outages = None if mtbf is None else _outages(mtbf, options["notice"], options["recovery"], traffic)
    scaling = None if autoscale is None else _scaling(autoscale, options["scale_target"])
    migrates = outages is not None and outages.recovery == MIGRATE
    return FleetRules(
        startup_s=_startup_s(steps) if startup is None else _time("startup", startup, zero=True),
        kv_bytes_per_s=link_bytes_per_s(steps.setting.hardware, KvLink.SCALE_OUT) if migrates else 0.0,
        seed=options["seed"], outages=outages, scaling=scaling,
    )  # fmt: skip


def _check_fleet(name: str, steps: Steps, policy: Policy, prefill_replicas: int) -> None:
    """Raises InputError for fleets whose changes, asked for by the argument `name`, are not simulated."""
    if prefill_replicas:
        raise InputError(f"{name} must be left out with prefill_replicas, which neither fail nor change in number")
    if steps.rank_sets > 1:
        raise InputError(
            f"{name} needs replicas whose ranks take steps together; got {steps.setting.layout}, whose ranks are "
            "replicas by themselves: give --replicas for --dp"
        )
    if policy.padded:
        raise InputError(f"{name} must be left out with policy {policy}, whose batches run to their end")


def _outages(mtbf: float | str, notice: float | str | None, recovery: str | None, traffic: Traffic) -> Outages:
    """Failures of the arguments.

    Raises InputError for an invalid one.
    """
    way = RECOMPUTE if recovery is None else recovery
    if way not in RECOVERIES:
        raise InputError(f"recovery must be one of {', '.join(RECOVERIES)}; got {recovery!r}")
    if way == FAIL and traffic.calls:
        raise InputError(f"recovery must not be {FAIL} with {traffic.calls.kind}s, whose requests wait for others")
    return Outages(mtbf_s=_time("mtbf", mtbf), notice_s=_time("notice", notice or 0.0, zero=True), recovery=way)


def _time(name: str, value: float | str, *, zero: bool = False) -> float:
    """A time in seconds.

    zero  whether it may be 0

    Raises InputError unless it is one.
    """
    try:
        return time_s(value, zero=zero, most=_MAX_TIME_S)
    except ValueError as error:
        raise InputError(f"{name} {error}") from None


def _startup_s(steps: Steps) -> float:
    """Time in which each device reads its weights from storage, over the host link. [s]

    Raises InputError if the device's file has no storage.
    """
    hardware = steps.setting.hardware
    storage = hardware.numbers.get("storage.bandwidth")
    if storage is None:
        raise InputError(
            f"startup must be given (--startup TIME), from the start of a replica until it serves: {hardware.name} has "
            "no storage.bandwidth, by which weights would be read (--hardware-set 'storage.bandwidth=5 GB/s')"
        )
    return steps.weight_bytes / min(storage, hardware.numbers.get("host.bandwidth", inf))


def _scaling(text: str, target: float | None) -> Autoscaling:
    """Autoscaling between the numbers of replicas of a text such as "1-8".

    Raises InputError if it is none, or there is no target.
    """
    least, _, most = (part.strip() for part in str(text).partition("-"))
    fewest, limit = parse_count(least), parse_count(most)
    if fewest is None or limit is None or not fewest <= limit <= MAX_REPLICAS:
        must = f"the fewest and the most replicas, from 1 to {MAX_REPLICAS}, such as 1-8"
        raise InputError(f"autoscale must be {must}; got {text!r}")
    if target is None:
        raise InputError("scale_target must be given with autoscale: unfinished requests per replica, such as 32")
    if isinstance(target, bool) or not isinstance(target, int | float) or not 0 < target < inf:
        raise InputError(f"scale_target must be a positive number of unfinished requests per replica; got {target!r}")
    return Autoscaling(least=fewest, most=limit, target=float(target))
