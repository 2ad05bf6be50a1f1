"""The page in a browser: what it shows is what the command line prints, and nothing it asks for leaves this machine."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmviewer.analysis import analyze
from llmviewer.cli import cli
from llmviewer.units import seconds

if not shutil.which("chromium"):
    pytest.skip("no chromium on this machine", allow_module_level=True)
pytest.importorskip("playwright")

from llmviewer.webapp.screenshots import browsing, open_page, serving, settled

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def server():
    with serving() as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    with browsing() as found:
        yield found


@pytest.fixture
def page(browser, server):
    """A new page; whatever it asks for has to be here, and nothing may go wrong in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    found = context.new_page()
    found.set_default_timeout(60_000)
    wrong = []
    found.on("request", lambda r: None if r.url.startswith((server, "data:", "blob:")) else wrong.append(r.url))
    found.on("pageerror", lambda error: wrong.append(str(error)))
    found.on("response", lambda r: wrong.append(f"{r.status} {r.url}") if r.status >= 400 else None)
    yield found
    context.close()
    assert wrong == []


def cards(page):
    """The numbers to see first, by their labels."""
    return dict(
        page.eval_on_selector_all(".card", "a => a.map(c => [c.children[0].innerText, c.children[1].innerText])")
    )


def printed(*arguments):
    """What the command line says of the same, as JSON."""
    result = CliRunner().invoke(cli, ["analyze", *arguments, "--format", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)["generation"]


def fill(page, name, value):
    page.fill(f"#{name}", value)
    page.press(f"#{name}", "Enter")
    page.wait_for_timeout(300)
    settled(page)


def test_a_change_of_bits_gives_the_numbers_of_the_command_line(page, server):
    open_page(page, server)
    before = printed("llama-3.1-8b", "h100-sxm")
    assert cards(page)["time per output token"] == seconds(before["tpot_s"])
    fill(page, "quant", "W4A16g128")
    after = printed("llama-3.1-8b", "h100-sxm", "--quant", "W4A16g128")
    assert after["tpot_s"] < before["tpot_s"]
    assert cards(page)["time per output token"] == seconds(after["tpot_s"])
    assert cards(page)["time to first token"] == seconds(after["ttft_s"])
    assert "quant=W4A16g128" in page.url
    fill(page, "batch", "32")
    assert cards(page)["time per output token"] == seconds(
        printed("llama-3.1-8b", "h100-sxm", "--quant", "W4A16g128", "--batch", "32")["tpot_s"]
    )


def test_a_node_a_row_and_a_point_show_their_operator(page, server):
    open_page(page, f"{server}?tab=network")
    page.wait_for_function("document.querySelector('#network')._cyreg && document.querySelector('#network')._cyreg.cy")
    at = page.evaluate(
        "document.querySelector('#network')._cyreg.cy.getElementById('layer.down_proj').renderedPosition()"
    )
    page.locator("#network").hover(position=at)  # which scrolls there
    page.wait_for_timeout(500)
    page.locator("#network").click(position=at)
    page.wait_for_function("document.querySelector('#inspected').innerText.startsWith('down_proj')")
    assert "op=layer.down_proj" in page.url
    open_page(page, page.url.replace("tab=network&", ""))
    assert page.inner_text("#inspected").startswith("down_proj")
    page.click("#operators .ag-row:has-text('lm_head') .ag-cell >> nth=0")
    page.wait_for_function("document.querySelector('#inspected').innerText.startsWith('lm_head')")
    points = page.locator("#roofline .scatterlayer .points path")
    points.nth(points.count() - 1).hover(force=True)
    bar = page.locator("#times .barlayer .point path").first
    bar.click(force=True)
    page.wait_for_function("!document.querySelector('#inspected').innerText.startsWith('lm_head')")


def test_three_devices_reload_from_the_link(page, server):
    open_page(page, f"{server}?on=h100-sxm|l40s|mi300x&phase=prefill&batch=4")
    names = page.eval_on_selector_all(".totals tbody th", "all => all.map(c => c.innerText)")
    assert names == ["h100-sxm", "l40s", "mi300x"]
    shown = page.inner_text(".totals")
    for name in names:
        assert seconds(analyze("llama-3.1-8b", name, batch=4).generation.ttft_s) in shown
    page.reload()
    settled(page)
    assert page.inner_text(".totals") == shown
    assert page.locator("#phase input:checked").get_attribute("value") == "prefill"
    assert page.input_value("#batch") == "4"


def test_a_link_that_is_wrong_says_so_and_shows_the_usual(page, server):
    open_page(page, f"{server}?model=../../etc/passwd&batch=0&quant=nonsense")
    notices = page.inner_text("#notices")
    assert "no '../../etc/passwd'" in notices
    assert "batch" in notices
    assert "quantization must be" in notices
    assert page.url == server
    assert "Llama 3.1 8B" in page.inner_text("#answer h2")


def test_what_cannot_be_used_is_said_beside_its_control_and_the_last_answer_stays(page, server):
    open_page(page, server)
    before = page.inner_text("#answer")
    fill(page, "quant", "W17")
    assert "bits must be" in page.inner_text("#error-quant")
    assert page.inner_text("#answer") == before
    fill(page, "batch", "2")
    assert "batch 2" in page.inner_text("#answer")
    assert page.input_value("#quant") == "W17"
    fill(page, "quant", "W8A16")
    assert page.inner_text("#error-quant") == ""
    assert "W8A16" in page.inner_text("#answer h2")


def test_a_config_and_a_broken_one(page, server, tmp_path):
    config = {
        "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "tie_word_embeddings": True, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    }  # fmt: skip
    good, broken = tmp_path / "tiny.json", tmp_path / "broken.json"
    good.write_text(json.dumps(config))
    broken.write_text('{"model_type": "llama", ')
    open_page(page, server)
    page.set_input_files("#model-file input", broken)
    page.wait_for_function("document.querySelector('#error-model').innerText.includes('is not JSON')")
    assert "broken.json:1" in page.inner_text("#error-model")
    assert "Llama 3.1 8B" in page.inner_text("#answer h2")
    page.set_input_files("#model-file input", good)
    page.wait_for_function("document.querySelector('#answer h2').innerText.startsWith('tiny')")
    settled(page)
    expected = analyze(str(good), "h100-sxm").generation
    assert cards(page)["time per output token"] == seconds(expected.tpot_s)
    other = page.context.browser.new_page()  # where the file has never been: it is in the link
    open_page(other, page.url)
    assert other.inner_text("#answer h2").startswith("tiny")
    other.close()


def test_a_device_of_ones_own_and_a_number_changed(page, server, tmp_path):
    text = (ROOT / "hardware" / "l40s.yaml").read_text()
    mine = tmp_path / "mine.yaml"
    mine.write_text(re.sub(r"(?m)^name: .*$", "name: mine", re.sub(r"(?m)^aliases: .*$", "", text)))
    open_page(page, server)
    page.set_input_files("#on-file input", mine)
    page.wait_for_function("document.querySelectorAll('.totals tbody tr').length == 2")
    assert "file:mine.yaml" in page.inner_text(".totals")
    open_page(page, f"{server}?set=h100-sxm:memory.bandwidth=2x")
    expected = analyze("llama-3.1-8b", "h100-sxm", hardware_set=["memory.bandwidth=2x"])
    assert cards(page)["time per output token"] == seconds(expected.generation.tpot_s)
    page.click("text=Numbers of the devices")
    cell = page.locator("#numbers .ag-row:has-text('memory.bandwidth') [col-id=value]")
    cell.dblclick()
    page.keyboard.press("Control+a")
    page.keyboard.type("3x")
    page.keyboard.press("Enter")
    page.wait_for_function("location.search.includes('3x')")
    settled(page)
    expected = analyze("llama-3.1-8b", "h100-sxm", hardware_set=["memory.bandwidth=3x"])
    assert cards(page)["time per output token"] == seconds(expected.generation.tpot_s)


def test_the_report_is_downloaded_and_opens_by_itself(page, server, tmp_path):
    open_page(page, f"{server}?batch=8")
    with page.expect_download() as download:
        page.click("#save-html")
    file = tmp_path / "report.html"
    download.value.save_as(file)
    assert download.value.suggested_filename == "llama-3.1-8b-h100-sxm.html"
    report = page.context.browser.new_page()
    asked = []
    report.on("request", lambda r: asked.append(r.url))
    report.goto(file.as_uri())
    assert report.locator(".js-plotly-plot").count() >= 4
    assert asked == [file.as_uri()]
    assert "batch 8" in report.inner_text("body")
    report.close()


def test_the_keyboard_reaches_the_controls_and_the_tabs(page, server):
    open_page(page, server)
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"model", "quant", "batch", "save-html"} <= seen
    assert page.locator("#label-batch").get_attribute("for") == "batch"


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_wider_than_the_page(page, server, width):
    page.set_viewport_size({"width": width, "height": 900})
    for tab in ("overview", "network", "memory", "glossary"):
        open_page(page, f"{server}?tab={tab}&on=h100-sxm|l40s")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab


def test_a_figure_and_a_table_are_saved(page, server, tmp_path):
    open_page(page, server)
    with page.expect_download() as download:
        page.click("figure:has(#roofline) button.svg")
    download.value.save_as(tmp_path / "roofline.svg")
    assert "llama-3.1-8b" not in (tmp_path / "roofline.svg").read_text()  # its title is the page's
    assert "arithmetic intensity" in (tmp_path / "roofline.svg").read_text()
    with page.expect_download() as download:
        page.click("#operators-csv")
    download.value.save_as(tmp_path / "operators.csv")
    head, *rows = (tmp_path / "operators.csv").read_text(encoding="utf-8-sig").splitlines()
    assert head.startswith('"Operator","Bound","time')
    assert len(rows) == len(analyze("llama-3.1-8b", "h100-sxm").phases.decode.operators)
