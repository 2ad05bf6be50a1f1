"""Makes profiles/engines/llama.cpp-cpu.yaml: factors of CPUs fitted to the passes of tests/host_passes.csv that are
marked as fitted; --check compares, --held-out prints the passes of other CPUs, which were not fitted.

Launches on the device of a pass have their expected time. A CPU's `weights` differ by its number of memory channels; a
launch, a crossing, arithmetic of few rows and the cache have one factor for all CPUs. Least squares of the logarithms
of measured over expected times, with a prior that counts as a tenth of a row for each factor.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import yaml
from scipy.optimize import least_squares

from llmviewer.devices.hardware import Hardware
from llmviewer.expectation.launches import launches
from llmviewer.expectation.launches.whole import CROSSING, ON_HOST
from llmviewer.expectation.profile import FOLDER
from llmviewer.expectation.whole_passes import terms
from llmviewer.setting import Setting
from llmviewer.workload import Workload

ROWS: Final = Path(__file__).parents[1] / "host_passes.csv"
PROFILE: Final = FOLDER / "engines" / "llama.cpp-cpu.yaml"
CLASSES: Final = {  # most memory channels, by title
    "CPU with 1 or 2 memory channels": 2,
    "CPU with 4 to 8 memory channels": 8,
    "CPU with 12 memory channels": 24,
}
SHARED: Final = {"wait_us": 40.0, "launch_us": 3.0, "cache": 1.5, "few_rows": 0.5}  # priors, one for all CPUs
FIXED: Final = {"moved": 1.5, "half": 1.5}  # no pass tells them
PROMPTS: Final = {"products": 5.0, "attention": 5.0}  # guesses: no prompt is fitted
WEIGHTS: Final = 1.5  # prior
PRIOR: Final = 0.3
INTERVAL: Final = (0.7, 1.4)  # of measured over expected time: at least as wide
GUESSED: Final = {"low": 0.5, "high": 2.0}


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A measured decode step: the expected time on the device, and amounts of the CPU by factor. [s]"""

    host: str
    title: str
    fitted: bool
    source: str
    text: str
    time_s: float
    device_s: float
    amounts: Mapping[str, float]

    def expected_s(self, factors: Mapping[str, float]) -> float:
        values = {**FIXED, **PROMPTS, **factors, "weights": factors[self.title], "crossing": 1.0}
        return self.device_s + sum(values[name] * amount for name, amount in self.amounts.items())


def title_of(host: Hardware) -> str:
    """The class of a CPU."""
    channels = host.numbers["memory.bus_width"] / 64
    return next(title for title, most in CLASSES.items() if channels <= most)


@cache
def measured() -> tuple[Pass, ...]:
    """All passes."""
    return tuple(_read())


def setting_of(row: Mapping[str, str]) -> Setting:
    """The setting of a row."""
    bandwidth = (f"memory.bandwidth={row['bandwidth_gb_s']}GB/s",)
    if not row["device"]:
        return Setting.of(row["model"], row["host"], quant=row["quant"], engine="llama.cpp", hardware_set=bandwidth)
    return Setting.of(
        row["model"], row["device"], quant=row["quant"], engine="llama.cpp", host=row["host"], host_set=bandwidth,
        on_host=row["on_host"],
    )  # fmt: skip


def _read() -> Iterator[Pass]:
    with ROWS.open() as file:
        for row in csv.DictReader(file):
            setting = setting_of(row)
            host = setting.host or setting.hardware
            workload = Workload.decode(batch=1, kv_len=max(int(row["past"]), 64) + 1)
            rows = setting.decode_plan.estimate(workload).operators
            amounts: dict[str, float] = defaultdict(float)
            expected = setting.kernels.expect(rows, workload) if setting.host else None
            device_s = 0.0
            for launch in launches(rows, workload, library="llama.cpp", half="fp16"):
                (place,), kernel = launch.members, launch.kernels[0]
                one = rows[place]
                if not one.time_s > 0:
                    continue
                if kernel.implementation.kernel == CROSSING:
                    amounts["wait_us"] += one.repeat * 1e-6
                    amounts["crossing"] += one.repeat * float(one.time_s)
                elif expected and kernel.implementation.library != ON_HOST:
                    device_s += one.repeat * float(expected.launches[place].expected[0])
                else:
                    for name, value in terms(kernel, host, integers=True).items():
                        amounts[name] += one.repeat * float(value[0])
            yield Pass(
                host=host.name, title=title_of(host), fitted=row["fitted"] == "yes", source=row["source"],
                text=f"{row['engine']} {row['model']} {row['quant']} {row['device']} {row['on_host']} {row['past']}",
                time_s=1 / float(row["tokens_per_s"]), device_s=device_s, amounts=amounts,
            )  # fmt: skip


def fit(passes: Sequence[Pass]) -> dict[str, float]:
    """The factors: those of SHARED, and `weights` by class of CPUs."""
    prior = {**SHARED, **dict.fromkeys(CLASSES, WEIGHTS)}
    middle = np.log(list(prior.values()))

    def errors(logs: np.ndarray) -> np.ndarray:
        factors = dict(zip(prior, np.exp(logs), strict=True))
        return np.array([*(np.log(one.expected_s(factors) / one.time_s) for one in passes), *PRIOR * (logs - middle)])

    least = np.log([*(value / 10 for value in SHARED.values()), *(1.0 for _ in CLASSES)])
    solution = least_squares(errors, middle, bounds=(least, middle + np.log(10)), loss="soft_l1", f_scale=0.2)
    return dict(zip(prior, map(float, np.exp(solution.x)), strict=True))


def ratios(passes: Sequence[Pass], factors: Mapping[str, float]) -> list[float]:
    """Measured over expected times."""
    return [one.time_s / one.expected_s(factors) for one in passes]


def held_out_by_host(passes: Sequence[Pass]) -> list[tuple[Pass, float]]:
    """Passes with measured over expected time, each with factors fitted without its CPU."""
    results = []
    for host in dict.fromkeys(one.host for one in passes):
        factors = fit([one for one in passes if one.host != host])
        results += [(one, *ratios([one], factors)) for one in passes if one.host == host]
    return results


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def profile() -> dict:
    """The document of CPUs."""
    passes = [one for one in measured() if one.fitted]
    factors, held_out = fit(passes), held_out_by_host(passes)
    low, high = np.quantile([ratio for _, ratio in held_out], (0.1, 0.9))
    few_tokens = {
        "passes": len(held_out), "median": _rounded(np.median([abs(1 / ratio - 1) for _, ratio in held_out])),
        "low": _rounded(min(low, INTERVAL[0])), "high": _rounded(max(high, INTERVAL[1])),
    }  # fmt: skip
    backends = []
    for title, channels in CLASSES.items():
        members = [one for one in passes if one.title == title]
        values = {**factors, **FIXED, "weights": factors[title]}
        backends.append({
            "title": title, "vendors": ["amd", "intel"], "kind": "cpu", "channels": channels, "activations": "A8g32",
            "passes": len(members), "devices": len({one.host for one in members}),
            **{name: _rounded(values[name])
               for name in ("wait_us", "launch_us", "weights", "cache", "moved", "few_rows", "half")},
            **{name: {"others": value} for name, value in PROMPTS.items()},
            "errors": {level: {"few tokens": dict(few_tokens), "prompts": {"passes": 0, **GUESSED}}
                       for level in ("device", "architecture", "backend")},
        })  # fmt: skip
    return {"source": "tests/host_passes.csv, fitted by tests/oracle/make_cpus.py", "backends": backends}


def main() -> None:
    text = yaml.safe_dump(profile(), sort_keys=False, width=120, default_flow_style=None)
    if "--held-out" in sys.argv:
        passes = measured()
        factors = fit([one for one in passes if one.fitted])
        for one in passes:
            print(
                f"{'fitted' if one.fitted else 'held out':9}{1 / one.time_s:7.2f} tokens/s, expected "
                f"{1 / one.expected_s(factors):7.2f} ({one.time_s / one.expected_s(factors):.2f}) {one.host} {one.text}"
            )
        print(factors)
    elif "--check" not in sys.argv:
        PROFILE.write_text(text)
    elif PROFILE.read_text() != text:
        sys.exit(f"{PROFILE} is not what {Path(__file__).name} makes")


if __name__ == "__main__":
    main()
