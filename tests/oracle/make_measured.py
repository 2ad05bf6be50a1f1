"""Draws the sample of measured kernels by which tests/test_gpu_accuracy.py checks expectations: measured/gpus.csv.gz.

    python tests/oracle/make_measured.py FOLDER    # with gemm.parquet, moe.parquet, ... of docs/measurements.md

A few rows of every stack, at random, of the public tables that the profiles name: aiconfigurator
(github.com/ai-dynamo/aiconfigurator, Apache-2.0), vidur (github.com/microsoft/vidur, MIT), InferSim
(github.com/alibaba/InferSim, Apache-2.0), AITER (github.com/ROCm/aiter, MIT), NeuSight (github.com/sitar-lab/NeuSight,
MIT), LLMServingSim (github.com/casys-kaist/LLMServingSim, MIT) and APEX+ (github.com/microsoft/apex_plus, MIT).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from llmviewer.expectation.families import FAMILIES
from llmviewer.expectation.rows import read

PATH = Path(__file__).parent.parent / "measured" / "gpus.csv.gz"
ROWS = 10  # of a stack
MIN_ROWS = 40  # of a stack that is drawn from
LABELS = ("source", "gpu", "framework", "version", "kernel", "dtype", "kv_dtype", "stat", "op", "attn", "impl",
          "distribution", "eager")  # fmt: skip


def main() -> None:
    """Writes the sample, a line for a row."""
    frames = []
    for name, family in FAMILIES.items():
        path = Path(sys.argv[1]) / f"{name}.parquet"
        if not path.exists():
            continue
        table = read(path)
        places = []
        for rows in table.rows:
            usable = rows.places[rows.fittable]
            if len(usable) >= MIN_ROWS:
                places.append(np.random.default_rng(0).permutation(usable)[:ROWS])
        columns = dict.fromkeys((*LABELS, *family.columns, *family.optional, "nodes", "time_us"))
        chosen = table.frame.iloc[np.sort(np.concatenate(places))]
        frames.append(chosen[[column for column in columns if column in chosen]].assign(family=name))
    sample = pd.concat(frames, ignore_index=True)
    sample["time_us"] = sample["time_us"].map(lambda time: float(f"{time:.4g}"))
    sample.to_csv(PATH, index=False, compression={"method": "gzip", "mtime": 0}, float_format="%.6g")


if __name__ == "__main__":
    main()
