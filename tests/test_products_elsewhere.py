"""Products on devices that no profile was fitted on: products_elsewhere.csv, as others have published them.

In fp8 blocks and int8. AMD's are the best kernel of each shape in aiter/configs of ROCm/aiter (MIT; commits 082a5637,
8c6c59d0 and 08e1e1da), the H20's are DeepGEMM's in bench_data of alibaba/InferSim (Apache-2.0; commit 7505de9b).
"""

from pathlib import Path

import numpy as np
import pytest

from llmviewer.expectation.index import index
from llmviewer.expectation.rows import read
from llmviewer.expectation.validate import predict


@pytest.fixture(scope="module")
def products():
    return predict(read(Path(__file__).with_name("products_elsewhere.csv")), index().fits).frame()


def test_nothing_was_measured_faster_than_the_bound(products):
    assert len(products) == 242
    assert np.all(products["time_us"] > products["bound_us"])


@pytest.mark.parametrize(
    ("gpu", "dtype", "median", "mean", "slower"),
    [("H20", "fp8_block", 0.04, 0.08, 1.02), ("MI300X", "fp8_block", 0.1, 0.13, 1.05),
     ("MI308X", "fp8_block", 0.1, 0.22, 1.05), ("MI300X", "int8", 0.42, 0.41, 1.4), ("MI308X", "int8", 0.5, 0.51, 1.5)],
)  # fmt: skip
def test_another_device_is_expected_from_its_rates_clocks_caches_and_power(products, gpu, dtype, median, mean, slower):
    """Expected int8 of CDNA 3 is too slow: on CDNA 4, which has twice the rate, its kernels reach less of it."""
    rows = products[(products["gpu"] == gpu) & (products["dtype"] == dtype)]
    ratio = rows["expected_us"] / rows["time_us"]
    off = abs(ratio - 1)
    assert np.median(off) < median
    assert np.mean(off) < mean
    assert np.median(ratio) == pytest.approx(slower, rel=0.1)
