"""The fastest products that were published of each device: fastest_products.csv, with their sources.

Half of the cards exceed the rate of their datasheet, whose boost clock is a typical one; none exceeds its bound.
"""

import csv
from pathlib import Path

import pytest

import llmviewer
from llmviewer.devices.files import hardware_names, load_hardware

with Path(__file__).with_name("fastest_products.csv").open(encoding="utf-8") as table:
    ROWS = list(csv.DictReader(table))
TYPICAL = ("geforce", "rtx", "radeon rx", "radeon pro", "quadro", "titan")  # brands rated at a typical boost clock
AS_REPORTED = ("rtx-pro-6000-server",)  # whose file has the highest clock that the driver reports


def test_no_published_product_is_faster_than_the_bound():
    beyond_datasheet = set()
    for row in ROWS:
        sizes = {size: int(row[size]) for size in "MNK"}
        (found,) = llmviewer.kernel("gemm", row["device"], sizes, quant=row["dtype"])
        time_s = float(row["time_us"]) * 1e-6
        assert found.repeated_time_s < time_s, row
        if time_s < found.datasheet_time_s and found.bound == "compute":
            beyond_datasheet.add(row["device"])
    assert beyond_datasheet >= {"rtx-3080-ti", "rtx-3090", "rtx-4090", "rtx-5070-ti", "rtx-5090"}


def test_the_bound_moves_with_the_highest_clock_and_expected_times_do_not():
    sizes = {"M": 8192, "N": 8192, "K": 8192}
    found = {}
    for clock in ("2600 MHz", "3210 MHz"):
        (found[clock],) = llmviewer.kernel("gemm", "rtx-5090", sizes, hardware_set=[f"clock.max={clock}"])
    low, high = found.values()
    assert low.bound_time_s / high.bound_time_s == pytest.approx(3210 / 2600)
    assert low.datasheet_time_s == high.datasheet_time_s == pytest.approx(2 * 8192**3 / 209.5e12, rel=1e-3)
    assert low.expected_time_s == high.expected_time_s > high.datasheet_time_s


def test_files_of_brands_with_a_typical_boost_clock_have_the_highest():
    for name in hardware_names():
        device = load_hardware(name)
        if any(brand in device.title.lower() for brand in TYPICAL) and name not in AS_REPORTED:
            assert device.fact("clock.max") > device.fact("clock.boost"), name


def test_a_rate_that_a_what_if_sets_is_the_limit():
    (found,) = llmviewer.kernel(
        "gemm", "rtx-5090", {"M": 8192, "N": 8192, "K": 8192}, hardware_set=["matrix.bf16=200 TOP/s"]
    )
    assert found.bound_time_s == found.datasheet_time_s == pytest.approx(2 * 8192**3 / 200e12)
    doubled = load_hardware("h100-sxm", ["clock.boost=2x"])
    assert doubled.headroom == pytest.approx(load_hardware("h100-sxm").headroom)
