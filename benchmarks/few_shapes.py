"""Measures how far kernels are that were fitted to one or two shape families: writes profiles/few_shapes.yaml.

    python benchmarks/few_shapes.py FOLDER    # with gemm.parquet, moe.parquet, ... of docs/measurements.md

A shape family is a weight shape, a head layout, a model shape, a width or a number of devices. Stacks with more of them
are fitted to one and to two, drawn at random, and their rows of all other families are expected. Each stack counts
equally; the interval of a stack is learned from the others. Few stacks of collectives have more than two: their rows
are expected from one family, and a fit to both has what leaving out either of them says.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from accuracy import FAMILY_TABLES
from fitted import REFIT_OPTION, Results, digest_of
from stand_ins import MIN_ROWS, ROOT, ROWS, Times, pooled

from llmviewer.expectation.calibrate import fit_kernel
from llmviewer.expectation.profile import FEW_SHAPES, FOLDER, SPREADS, Error, plain_error
from llmviewer.expectation.rows import MeasuredRows, read
from llmviewer.expectation.transfer import Estimator, FitSelection

STACKS = 10  # of a family that are fitted, at most


def main() -> None:
    """Writes the errors of fits to few shape families, from the measurements in a folder."""
    folder = Path(sys.argv[1])
    classes = [
        (name, FEW_SHAPES[count], samples)
        for name, table in FAMILY_TABLES.items()
        for count, samples in few_shapes([r for r in read(folder / table).rows if r.family.name == name]).items()
    ]
    digests = [digest_of(samples[0][0], source, *_digests(samples)) for _, source, samples in classes]
    arguments = [(samples, source) for _, source, samples in classes]
    with multiprocessing.Pool(2) as pool:
        results = Results("few shapes", is_refit=REFIT_OPTION in sys.argv).starmap(pool, _error, arguments, digests)
    errors: dict[str, dict[str, dict[str, object]]] = defaultdict(dict)
    for (name, source, _), error in zip(classes, results, strict=True):
        if error:
            errors[name][source] = {"all": plain_error(Error.of(error))}
    about = "Errors on other shapes of fits to one or two shape families: python benchmarks/few_shapes.py.\n"
    text = yaml.safe_dump({"errors": dict(errors)}, sort_keys=False, width=120, default_flow_style=None)
    (FOLDER / SPREADS).write_text(f"# {about}{text}", encoding="utf-8")
    subprocess.run([sys.executable, "-m", "llmviewer.expectation.index"], check=True, cwd=ROOT)


def few_shapes(groups: list[MeasuredRows]) -> dict[int, list[tuple[MeasuredRows, MeasuredRows]]]:
    """Rows of so many shape families, and of others, of some stacks of one family; by number of shape families."""
    random = np.random.default_rng(0)
    samples: dict[int, list[tuple[MeasuredRows, MeasuredRows]]] = defaultdict(list)
    usable = [rows.take(np.flatnonzero(rows.fittable)) for rows in groups]
    for count in FEW_SHAPES:
        able = [rows for rows in usable if len(rows) >= MIN_ROWS and rows.num_shape_families > count]
        chosen = [able[i] for i in sorted({round(j) for j in np.linspace(0, len(able) - 1, STACKS)})] if able else []
        for rows in chosen:
            fitted_to = np.isin(rows.shape_families(), random.permutation(rows.num_shape_families)[:count])
            near, far = (rows.take(random.permutation(np.flatnonzero(f))[:ROWS]) for f in (fitted_to, ~fitted_to))
            samples[count].append((near, far))
    return samples


def _digests(samples: list[tuple[MeasuredRows, MeasuredRows]]) -> list[str]:
    return [digest_of(rows) for sample in samples for rows in sample]


def _error(samples: list[tuple[MeasuredRows, MeasuredRows]], source: str) -> dict[str, Any]:
    """The error of fits to the first rows of each sample on its others; {} if fewer than two have enough rows."""
    times: list[Times] = []
    for near, far in samples:
        kernel_fit = fit_kernel(near)
        if kernel_fit and FEW_SHAPES.get(kernel_fit.shape_families) == source:
            choice = FitSelection(fits=(kernel_fit,), error=kernel_fit.held_out, source="")
            estimator = Estimator(selection=choice, device=far.device, implementation=far.implementation)
            bound = far.family.bound(far.shapes, far.device, far.implementation)
            times.append((np.maximum(estimator.expect(far.shapes).expected, bound), far.measured))
    return plain_error(pooled(times)) if len(times) > 1 else {}


if __name__ == "__main__":
    main()
