"""Makes profiles/engines/*.yaml: factors of engines fitted to the passes of tests/local_engines.csv; --check compares.

Least squares of relative errors, with less weight for outliers, and a prior that counts as a tenth of a row per factor.
Errors are of passes that were held out: of all other models on the same device, of other devices of its architecture,
and of other architectures of the backend.
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
from scipy.optimize import lsq_linear

from llmviewer.devices.files import load_hardware
from llmviewer.expectation.launches import launches
from llmviewer.expectation.profile import FOLDER
from llmviewer.expectation.whole_passes import COMMON, FEW_ROWS, LEVELS, PHASES, VARYING, architecture, has_hbm, terms
from llmviewer.setting import Setting
from llmviewer.workload import Workload

ROWS: Final = Path(__file__).parents[1] / "local_engines.csv"
OTHERS: Final = "others"
# Backends by engine: what their profiles begin with, and the names of the engine in the rows.
BACKENDS: Final = {
    "llama.cpp": (
        ({"title": "CUDA", "vendors": ["nvidia"], "activations": "A8g32"}, ["llama.cpp CUDA"]),
        ({"title": "Metal", "vendors": ["apple"]}, ["llama.cpp Metal"]),
        ({"title": "ROCm", "vendors": ["amd"], "hbm": True, "activations": "A8g32"}, ["llama.cpp ROCm"]),
        ({"title": "ROCm or Vulkan", "vendors": ["amd"], "hbm": False, "activations": "A8g32"},
         ["llama.cpp ROCm", "llama.cpp Vulkan"]),
        ({"title": "Vulkan", "vendors": ["intel"], "activations": "A8g32"}, ["llama.cpp Vulkan"]),
    ),
    "mlx": (({"title": "Metal", "vendors": ["apple"]}, ["MLX"]),),
}  # fmt: skip
OLD: Final = "XiongjieDai"  # of May 2024: kernels of these types were rewritten since (pulls 7676, 7860)
USUAL: Final = {"launch_us": 4.0, "weights": 1.15, "cache": 1.5, "moved": 1.5, "few_rows": 2.0, "half": 1.5}
PRIOR: Final = 0.3  # weight of a factor's prior, beside 1 of a row
ROUNDS: Final = 40  # of reweighting
TYPICAL: Final = 0.1  # relative error from which on a row has less weight
TELLING: Final = 40  # a factor is told by passes in which its amount is at least this part of the time
LEAST: Final = 5  # held-out passes that tell errors; with fewer they are UNTOLD
ENOUGH: Final = 20  # with which errors may be smaller than USUAL_ERRORS
USUAL_ERRORS: Final = (0.8, 1.25)
UNTOLD: Final = dict(zip(PHASES, ((0.7, 1.4), (0.5, 2.0)), strict=True))


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A measured pass: what it is of, its time [s], and its amounts at full rates by factor."""

    engine: str
    device: str
    model: str
    quant: str
    batch: int
    tokens: int
    past: int
    time_s: float
    bound_s: float
    amounts: Mapping[str, float]

    @property
    def architecture(self) -> str:
        return architecture(load_hardware(self.device))

    def fits(self, head: Mapping[str, object]) -> bool:
        """Whether its device is one of a backend, by what the profile of that begins with."""
        device = load_hardware(self.device)
        return device.vendor in head["vendors"] and head.get("hbm", has_hbm(device)) == has_hbm(device)

    @property
    def phase(self) -> str:
        return PHASES[self.batch * self.tokens > FEW_ROWS]


@cache
def measured() -> tuple[Pass, ...]:
    """All passes of llama.cpp and MLX."""
    return tuple(_read())


def _read() -> Iterator[Pass]:
    kinds = {
        name: (engine, head.get("activations", ""))
        for engine, every in BACKENDS.items()
        for head, names in every
        for name in names
    }
    with ROWS.open() as file:
        for row in csv.DictReader(file):
            old = row["quant"] == "Q4_K_M" and row["source"].startswith(OLD)
            if row["engine"] not in kinds or old:
                continue
            engine, activations = kinds[row["engine"]]
            batch, tokens, past = (int(row[key]) for key in ("batch", "tokens", "past"))
            setting = Setting.of(row["model"], row["device"], quant=quant_of(row["quant"], activations))
            workload = Workload.chunk(batch=batch, chunk=tokens, past=past)
            rows = setting.plan.estimate(workload).operators
            amounts: dict[str, float] = defaultdict(float)
            for launch in launches(rows, workload, library=engine, half="fp16"):
                operator = rows[launch.members[0]]
                if operator.time_s > 0:
                    for name, value in terms(launch.kernels[0], setting.hardware, integers=bool(activations)).items():
                        amounts[name] += operator.repeat * float(value[0])
            yield Pass(
                engine=row["engine"], device=row["device"], model=row["model"], quant=row["quant"], batch=batch,
                tokens=tokens, past=past, time_s=batch * tokens / float(row["tokens_per_s"]),
                bound_s=float(setting.plan.time_s(workload)), amounts=amounts,
            )  # fmt: skip


def quant_of(name: str, activations: str) -> str | None:
    """A precision as --quant takes it, of one as llama-bench and mlx_lm name it."""
    if name == "F16":
        return "fp16"
    return f"{name},{activations}" if name and activations else name or None


def design(passes: Sequence[Pass], names: Sequence[tuple[str, str]]) -> np.ndarray:
    """Amounts [pass, factor] of factors by name and key: a device, an architecture or OTHERS."""
    places = {name: place for place, name in enumerate(names)}
    found = np.zeros((len(passes), len(names)))
    for row, one in enumerate(passes):
        for name, amount in one.amounts.items():
            keys = (one.device, one.architecture, OTHERS)
            found[row, next(places[name, key] for key in keys if (name, key) in places)] += amount
    return found


def fit(passes: Sequence[Pass]) -> dict[tuple[str, str], float]:
    """The factors of a backend."""
    prompts = [one for one in passes if one.phase == PHASES[1]]
    own = {
        "products": sorted({one.architecture for one in prompts if one.amounts["products"] > one.time_s / TELLING}),
        "attention": sorted({one.architecture for one in prompts if one.amounts["attention"] > one.time_s / TELLING}),
    }
    usual = {**{(name, OTHERS): value for name, value in USUAL.items()}, ("products", OTHERS): 3.0,
             ("attention", OTHERS): 3.0}  # fmt: skip
    found = _solved(passes, usual, 0.1 * PRIOR)  # of all devices together, which is the prior of each architecture
    split = usual | {(name, key): found[name, OTHERS] for name in VARYING for key in (OTHERS, *own[name])}
    found = _solved(passes, split, PRIOR)
    for name in VARYING:
        known = [found[name, key] for key in own[name]]
        found[name, OTHERS] = float(np.median(known)) if known else found[name, OTHERS]
    return found | _by_device(prompts, found)


def _solved(
    passes: Sequence[Pass], usual: Mapping[tuple[str, str], float], prior: float
) -> dict[tuple[str, str], float]:
    names, middle = list(usual), np.array(list(usual.values()))
    amounts = design(passes, names) / np.array([one.time_s for one in passes])[:, None]
    least = np.array([0.0 if name in ("launch_us", "few_rows") else 1.0 for name, _ in names])
    weights = np.ones(len(passes))
    factors = middle
    for _ in range(ROUNDS):
        matrix = np.vstack([amounts * weights[:, None], np.diag(prior / middle)])
        wanted = np.concatenate([weights, np.full(len(names), prior)])
        factors = lsq_linear(matrix, wanted, bounds=(least, np.full(len(names), np.inf)), method="bvls").x
        errors = np.log(amounts @ factors)
        weights = (1 + (errors / TYPICAL) ** 2) ** -0.25
    return dict(zip(names, map(float, factors), strict=True))


def _by_device(prompts: Sequence[Pass], found: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    """`products` of devices whose prompts were measured: the median over them, and once that of the architecture."""
    rest = {key: value for key, value in found.items() if key[0] != "products"}
    names = [*rest, ("products", OTHERS)]
    every: dict[str, list[float]] = defaultdict(list)
    for one in prompts:
        amounts = design([one], names)[0]
        if amounts[-1] > one.time_s / TELLING:
            every[one.device].append((one.time_s - float(amounts[:-1] @ list(rest.values()))) / float(amounts[-1]))
    devices = {}
    for device, values in sorted(every.items()):
        usual = found.get(("products", architecture(load_hardware(device))), found["products", OTHERS])
        own = max(float(np.median(values)), 1.0)
        devices["products", device] = float(np.exp((len(values) * np.log(own) + np.log(usual)) / (len(values) + 1)))
    return devices


def expected_s(one: Pass, factors: Mapping[tuple[str, str], float]) -> float:
    """The expected time of a pass. [s]"""
    return max(float(design([one], list(factors))[0] @ list(factors.values())), one.bound_s)


def held_out(passes: Sequence[Pass]) -> dict[tuple[str, str], list[tuple[Pass, float]]]:
    """Passes with measured over expected time, by level and phase, each expected without those like it."""
    found: dict[tuple[str, str], list[tuple[Pass, float]]] = defaultdict(list)
    for level, group in zip(
        LEVELS, (lambda p: (p.device, p.model), lambda p: p.device, lambda p: p.architecture), strict=True
    ):
        for key in sorted({group(one) for one in passes}):
            left = [one for one in passes if group(one) != key]
            if not left:
                continue
            factors = fit(left)
            known = {one.device for one in left}, {one.architecture for one in left}
            for one in (one for one in passes if group(one) == key):
                nearest = 0 if one.device in known[0] else 1 if one.architecture in known[1] else 2
                if LEVELS[nearest] == level:
                    found[level, one.phase].append((one, one.time_s / expected_s(one, factors)))
    return found


def errors(passes: Sequence[Pass]) -> dict[str, dict[str, dict[str, float]]]:
    """Held-out passes by level and phase: their number, median error, and between which quotients of measured and
    expected time 80 % are, which are never nearer to 1 than those of the level before.
    """
    found, made = held_out(passes), {}
    before = dict.fromkeys(PHASES, (1.0, 1.0))
    for level in LEVELS:
        made[level] = {}
        for phase in PHASES:
            ratios = [ratio for _, ratio in found[level, phase]]
            low, high = np.quantile(ratios, (0.1, 0.9)) if len(ratios) >= LEAST else UNTOLD[phase]
            least, most = before[phase] if len(ratios) >= ENOUGH else USUAL_ERRORS
            before[phase] = min(float(low), least, before[phase][0]), max(float(high), most, before[phase][1])
            low, high = map(_rounded, before[phase])
            told = {"median": _rounded(np.median([abs(1 / ratio - 1) for ratio in ratios]))} if ratios else {}
            made[level][phase] = {"passes": len(ratios), **told, "low": low, "high": high}
    return made


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def profile(engine: str) -> dict:
    """The document of an engine."""
    made = []
    for head, names in BACKENDS[engine]:
        passes = [one for one in measured() if one.engine in names and one.fits(head)]
        factors = fit(passes)
        made.append({
            **head, "passes": len(passes), "devices": len({one.device for one in passes}),
            **{name: _rounded(factors[name, OTHERS]) for name in COMMON},
            **{name: {key: _rounded(value) for (of, key), value in factors.items() if of == name} for name in VARYING},
            "errors": errors(passes),
        })  # fmt: skip
    return {"source": "tests/local_engines.csv, fitted by tests/oracle/make_engines.py", "backends": made}


def main() -> None:
    for engine in BACKENDS:
        path = FOLDER / "engines" / f"{engine}.yaml"
        text = yaml.safe_dump(profile(engine), sort_keys=False, width=120, default_flow_style=None)
        if "--check" not in sys.argv:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"{path} is not what {Path(__file__).name} makes")


if __name__ == "__main__":
    main()
