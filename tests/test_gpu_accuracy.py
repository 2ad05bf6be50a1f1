"""A gate on expected times of GPUs, by a sample of public measurements: tests/measured/gpus.csv.gz.

`python tests/test_gpu_accuracy.py` writes the errors and coverages that it compares with, tests/measured/gpus.json;
tests/oracle/make_measured.py drew the sample. benchmarks/left_out.py is the same on all rows.
"""

import json
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from llmviewer.expectation.index import index
from llmviewer.expectation.profile import FEW_SHAPES
from llmviewer.expectation.rows import table_of
from llmviewer.expectation.transfer import expect

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from left_out import Coverage, coverages

SAMPLE = Path(__file__).parent / "measured" / "gpus.csv.gz"
RECORDED = SAMPLE.with_name("gpus.json")
MIN_STACKS, MIN_DEVICES = 5, 2  # whose coverage says something
MOST_COVERED = 0.9
FAR = 4  # measured time over the bound, in the median, from which a kernel is far above it
# Those that know the rows have intervals for other shapes, and those of few devices of other vendors are widened.
HOLD_MORE = ("calibrated", "others", *FEW_SHAPES.values())


@cache
def groups():
    """The stacks of the sample."""
    labels = dict.fromkeys(("gpu", "framework", "dtype", "kv_dtype", "version"), str)
    frame = pd.read_csv(SAMPLE, low_memory=False, dtype=labels)
    parts = [part.dropna(axis=1, how="all").reset_index(drop=True) for _, part in frame.groupby("family", sort=False)]
    tables = [table_of(part, SAMPLE) for part in parts]
    assert not any(count for table in tables for count in table.unread.values())
    return [rows for table in tables for rows in table.rows]


def calibrated():
    """Error and coverage of the fits that ship, on rows some of which they were fitted to."""
    fits = {(fit.device, fit.family, fit.implementation): fit for fit in index().fits}
    found = {}
    for rows in groups():
        fit = fits.get((rows.device.name, rows.family.name, rows.implementation))
        if not fit:
            continue
        expected = expect(rows.family.name, rows.shapes, rows.device, rows.implementation, [fit])
        source = FEW_SHAPES.get(fit.shape_families, "calibrated")
        one = found.setdefault((rows.family.name, source), Coverage())
        one.errors.append(float(np.mean(np.abs(expected.expected / rows.measured - 1))))
        is_inside = (rows.measured >= expected.low) & (rows.measured <= expected.high)
        one.inside[rows.device.name].append(float(np.mean(is_inside)))
    return found


@cache
def numbers():
    """Stacks, devices, error and coverage by family and source."""
    found = {**calibrated(), **coverages(groups(), index().fits)}
    return {
        f"{family}: {source}": [len(one.errors), len(one.inside), round(one.error, 4), round(one.covered, 3)]
        for (family, source), one in sorted(found.items())
        if len(one.errors) >= MIN_STACKS
    }


def recorded():
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def test_every_family_and_class_of_source_is_there():
    assert numbers().keys() == recorded().keys()


@pytest.mark.parametrize("name", recorded() if RECORDED.exists() else ())
def test_no_error_grew_by_a_tenth(name):
    assert numbers()[name][2] <= 1.1 * recorded()[name][2]


@pytest.mark.parametrize("name", recorded() if RECORDED.exists() else ())
def test_intervals_hold_about_80_percent(name):
    _, devices, _, covered = numbers()[name]
    if devices >= MIN_DEVICES:
        assert 0.7 <= covered <= (1.0 if name.endswith(HOLD_MORE) else MOST_COVERED)


def test_intervals_hold_on_other_devices_for_kernels_far_above_their_bound():
    """Two thirds of the stacks, for which a device that was not measured has nothing else to go by."""
    far = []
    for rows in groups():
        bound = rows.family.bound(rows.shapes, rows.device, rows.implementation)
        if np.median(rows.measured / np.maximum(bound, 1e-9)) > FAR:
            far.append(rows)
    assert len(far) > 300
    classes = {key: one for key, one in coverages(far, index().fits).items() if key[1] in ("siblings", "same maker")}
    enough = {key: one for key, one in classes.items() if len(one.errors) >= MIN_STACKS}
    assert len(enough) >= 10
    for one in enough.values():
        assert 0.7 <= one.covered <= MOST_COVERED


def test_the_gate_shuts_before_times_that_are_a_third_longer():
    """The same expectations of rows that took longer are outside it."""
    rows = [rows for rows in groups() if rows.family.name == "gemm"]
    slower = [type(one)(**{**one.__dict__, "measured": 1.33 * one.measured}) for one in rows]
    for (family, source), one in coverages(slower, index().fits).items():
        before = recorded().get(f"{family}: {source}")
        if before and source == "siblings":
            assert one.error > 1.1 * before[2] or one.covered < 0.7


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(numbers(), indent=1) + "\n", encoding="utf-8")
