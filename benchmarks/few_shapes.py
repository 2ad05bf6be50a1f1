"""Measures how far kernels are that were fitted to one or two shape families: writes profiles/few_shapes.yaml.

    python benchmarks/few_shapes.py FOLDER    # with gemm.parquet, moe.parquet, ... of docs/measurements.md

A shape family is a weight shape, a head layout, a model shape, a width or a number of devices. Stacks with more of them
are fitted to one and to two, drawn at random, and their rows of all other families are expected. Each stack counts
equally; the interval of a stack is learned from the others. Few stacks of collectives have more than two: their rows
are expected from one family, and a fit to both has what leaving out either of them says.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import yaml
from accuracy import TABLES
from stand_ins import MIN_ROWS, ROOT, ROWS, Times, pooled

from llmviewer.expectation.calibrate import fit_kernel
from llmviewer.expectation.profile import FEW_SHAPES, FOLDER, SPREADS, Error, plain_error
from llmviewer.expectation.rows import MeasuredRows, read
from llmviewer.expectation.transfer import Estimator, FitSelection

STACKS = 10  # of a family that are fitted, at most


def main() -> None:
    """Writes the errors of fits to few shape families, from the measurements in a folder."""
    folder = Path(sys.argv[1])
    errors: dict[str, dict[str, dict[str, object]]] = defaultdict(dict)
    for name in TABLES:
        for source, error in few_shapes(list(read(folder / f"{name}.parquet").rows)).items():
            errors[name][source] = {"all": plain_error(error)}
    about = "Errors on other shapes of fits to one or two shape families: python benchmarks/few_shapes.py.\n"
    text = yaml.safe_dump({"errors": dict(errors)}, sort_keys=False, width=120, default_flow_style=None)
    (FOLDER / SPREADS).write_text(f"# {about}{text}", encoding="utf-8")
    subprocess.run([sys.executable, "-m", "llmviewer.expectation.index"], check=True, cwd=ROOT)


def few_shapes(groups: list[MeasuredRows]) -> dict[str, Error]:
    """The error of fits to one and to two shape families on the rows of others, from the stacks of one family."""
    random = np.random.default_rng(0)
    times: dict[str, list[Times]] = defaultdict(list)
    usable = [rows.take(np.flatnonzero(rows.fittable)) for rows in groups]
    for count, name in FEW_SHAPES.items():
        able = [rows for rows in usable if len(rows) >= MIN_ROWS and rows.num_shape_families > count]
        chosen = [able[i] for i in sorted({round(j) for j in np.linspace(0, len(able) - 1, STACKS)})] if able else []
        for rows in chosen:
            fitted_to = np.isin(rows.shape_families(), random.permutation(rows.num_shape_families)[:count])
            near, far = (rows.take(random.permutation(np.flatnonzero(f))[:ROWS]) for f in (fitted_to, ~fitted_to))
            kernel_fit = fit_kernel(near)
            if kernel_fit and kernel_fit.shape_families == count:
                choice = FitSelection(fits=(kernel_fit,), error=kernel_fit.held_out, source="")
                estimator = Estimator(selection=choice, device=rows.device, implementation=rows.implementation)
                bound = rows.family.bound(far.shapes, rows.device, rows.implementation)
                times[name].append((np.maximum(estimator.expect(far.shapes).expected, bound), far.measured))
    return {name: pooled(of_class) for name, of_class in times.items() if len(of_class) > 1}


if __name__ == "__main__":
    main()
