"""Expectations against speeds that authors of kernels publish, and against rows of our own where there are any."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from llmviewer.expectation.calibrate import calibrate
from llmviewer.expectation.device import find_device
from llmviewer.expectation.families import FAMILIES, Implementation
from llmviewer.expectation.profile import shipped
from llmviewer.expectation.rows import read
from llmviewer.expectation.transfer import expect

HERE = Path(__file__).parent
PUBLISHED = yaml.safe_load((HERE / "published_kernels.yaml").read_text(encoding="utf-8"))["kernels"]
MEASURED = sorted(
    path for path in (HERE.parent / "reports" / "measurements").rglob("*") if path.suffix in (".parquet", ".csv")
)
LIMIT = 0.08  # median error on shape families that were not calibrated with
LIMITS = {  # of a CPU that other programs used, too, and which waits for pages that the system clears
    "amd-epyc-gemm": 0.15, "amd-epyc-attention_prefill": 0.15, "amd-epyc-elementwise": 0.25,
}  # fmt: skip
LEAST = 30  # rows of a stack that a half is worth calibrating on
MOST = 2  # stacks of a table, those of most rows
UNDER_BOUND = 0.005  # share of rows


def seconds(found):
    """Published speeds as times, and the shapes that they are of."""
    columns = dict(zip(found["columns"], np.array(found["rows"], dtype=float).T, strict=True))
    rate = columns.pop("TFLOPS") * 1e12
    if found["family"] == "gemm":
        return 2 * np.prod(list(columns.values()), axis=0) / rate, columns
    columns |= {"kv_heads": columns["q_heads"], "kv_len": columns["q_len"], "v_head_dim": columns["head_dim"]}
    columns["causal"] = np.zeros(len(rate))
    pairs = columns["batch"] * columns["q_heads"] * columns["q_len"] ** 2
    return 4 * pairs * columns["head_dim"] / rate, columns


@pytest.mark.parametrize("found", PUBLISHED, ids=[found["source"].split(",")[0] for found in PUBLISHED])
def test_published_speeds_are_expected(found):
    times, columns = seconds(found)
    family, attention = FAMILIES[found["family"]], found["family"].startswith("attention")
    implementation = Implementation(
        library=found["library"],
        dtype=found["dtype"],
        kv_dtype="bf16" if attention else "",
        kernel=found.get("kernel", ""),
    )
    shapes = {**{key: np.full(len(times), value) for key, value in family.optional.items()}, **columns}
    expectation = expect(family.name, shapes, find_device(found["device"]), implementation, shipped())
    assert expectation.source.startswith(f"calibrated on {found['device']}")
    assert np.all(expectation.bound <= times)
    assert np.mean(np.abs(expectation.expected / times - 1)) < found["within"]


@pytest.mark.slow("fits many rows")
@pytest.mark.parametrize("path", MEASURED, ids=[f"{path.parent.name}-{path.stem}" for path in MEASURED])
def test_rows_of_our_own_are_expected_from_the_other_half_of_their_shapes(path, monkeypatch):
    pytest.importorskip("scipy")
    monkeypatch.setenv("LLMVIEWER_HARDWARE_PATH", str(path.parent / "hardware"))  # as it was measured
    errors, under, count, calibrated = [], 0, 0, 0
    for rows in sorted(read(path).rows, key=len, reverse=True):
        kept = rows.take(np.flatnonzero(rows.family.fittable(rows.shapes) & (rows.measured > 0)))
        bound = rows.family.bound(kept.shapes, kept.device, kept.implementation)
        under, count = under + np.count_nonzero(kept.measured * 1.005 < bound), count + len(kept)
        half = kept.shape_families() % 2 == 0
        if len(kept) < LEAST or not 0.2 < np.mean(half) < 0.8 or calibrated == MOST:
            continue
        calibrated += 1
        profiles = calibrate([kept.take(np.flatnonzero(half))], priors=shipped())
        rest = kept.take(np.flatnonzero(~half))
        fits = [kernel_fit for profile in profiles for kernel_fit in profile.fits]
        found = expect(rest.family.name, rest.shapes, rest.device, rest.implementation, fits)
        errors += list(np.abs(found.expected / rest.measured - 1))
    assert under <= UNDER_BOUND * count
    assert bool(errors) == (path.stem != "moe")  # of which half of the rows is too few
    assert not errors or np.median(errors) < LIMITS.get(f"{path.parent.name}-{path.stem}", LIMIT)
