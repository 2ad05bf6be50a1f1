"""Sweeps, comparison and validation in a browser."""

import shutil

import pytest

from llmviewer.analysis import analyze
from llmviewer.units import seconds

if not shutil.which("chromium"):
    pytest.skip("no chromium on this machine", allow_module_level=True)
pytest.importorskip("playwright")

from llmviewer.webapp.screenshots import open_page, settled
from tests.test_webapp_browser import assert_within, browser, fill, page, server

__all__ = ["browser", "page", "server"]  # fixtures


def test_sweeps_follow_their_controls_and_the_link(page, server):
    open_page(page, f"{server}?on=h100-sxm|l4&tab=sweeps&sweep=length")
    page.wait_for_selector("#sweep-map-1 .heatmaplayer image")
    assert page.locator("#sweep-decode .scatterlayer .trace").count() >= 2
    assert page.locator("#sweep-map-1 .heatmaplayer image").count() == 1
    page.click("#curves >> text=precision")
    page.wait_for_function("location.search.includes('curves=precisions')")
    settled(page)
    fill(page, "quants", "W16A16; W4A16; W17")
    assert "bits must be" in page.inner_text(".sweeps .error")
    names = page.eval_on_selector_all("#sweep-decode .legendtext", "all => all.map(t => t.textContent)")
    assert names[:2] == ["W16A16", "W4A16"]
    shown = page.inner_text(".sweeps table")
    page.reload()
    settled(page)
    assert page.inner_text(".sweeps table") == shown
    with page.expect_download() as download:
        page.click("#sweeps-csv")
    assert download.value.path().read_text().startswith("of,prompt,decode_step_s")
    open_page(page, f"{server}?on=h100-sxm&tab=sweeps&sweep=figure-5")
    assert "Rooflines of" in page.inner_text(".sweeps h3")


def test_a_setting_is_pinned_compared_and_let_go(page, server):
    open_page(page, f"{server}?tab=compare")
    assert page.locator("#compare-times").count() == 0
    page.click("text=Pin h100-sxm as A")
    page.wait_for_selector("text=Unpin A")
    fill(page, "quant", "W4A16g128")
    assert "A to now: " in page.inner_text(".said >> nth=1")
    cells = page.eval_on_selector_all(
        ".compare table >> nth=0 >> tr:has(th:text-is('time per output token')) td", "all => all.map(c => c.innerText)"
    )
    times = [analyze("llama-3.1-8b", "h100-sxm", quant=quant).generation.tpot_s for quant in (None, "W4A16g128")]
    assert cells == [seconds(times[0]), f"{seconds(times[1])} ({times[1] / times[0]:.3g}x)"]
    other = page.context.browser.new_page()  # the link has the pins
    open_page(other, page.url)
    assert other.inner_text(".compare") == page.inner_text(".compare")
    other.close()
    page.focus("text=Unpin A")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Pin h100-sxm as A")
    assert "pins" not in page.url


def test_measurements_are_dropped_in_and_scored(page, server, tmp_path):
    good, bad = tmp_path / "mine.csv", tmp_path / "bad.csv"
    rows = "\n".join(f"H100-SXM,vllm,bf16,{2**i},4096,4096,{10 + 2**i / 50}" for i in range(12))
    good.write_text(f"gpu,framework,dtype,M,N,K,time_us\n{rows}\n")
    bad.write_text("a,b\n1,2\n")
    large, other = tmp_path / "large.csv", tmp_path / "notes.txt"
    large.write_text("gpu,M\n" + "h100,1\n" * 800_000)
    other.write_text("nothing")
    open_page(page, f"{server}?tab=validation")
    for file, message in (
        (bad, "bad.csv: no family has these columns"), (other, "notes.txt: must end in .csv or .parquet"),
        (large, "large.csv: must have at most 5,000,000 bytes; got 5,600,006"),
    ):  # fmt: skip
        page.set_input_files("#measured input", file)
        page.wait_for_selector(f".panel:has(#measured) .error:has-text('{message}')")
    page.set_input_files("#measured input", good)
    page.wait_for_selector("#measured-scatter .scatterlayer .points path")
    assert page.locator("#measured-scatter .scatterlayer .trace >> nth=0 >> .points path").count() == 12
    assert "calibrated" in page.inner_text("#measured-result table >> nth=0")
    assert "".join(page.locator(".panel:has(#measured) .error").all_inner_texts()) == ""
    with page.expect_download() as download:
        page.click("#measured-csv")
    assert len(download.value.path().read_text().splitlines()) == 13
    page.set_input_files("#measured input", bad)  # and the last result stays
    page.wait_for_selector(".panel:has(#measured) .error:has-text('bad.csv')")
    assert page.locator("#measured-scatter").count() == 1


def test_no_tab_with_pins_is_wider_than_the_page(page, server):
    for tab in ("sweeps", "compare"):
        page.set_viewport_size({"width": 400, "height": 900})
        open_page(page, f"{server}?tab={tab}&on=h100-sxm|l40s&pins=batch%3D8|model%3Dgpt2")
        assert_within(page, tab)
