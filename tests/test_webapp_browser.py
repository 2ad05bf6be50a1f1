"""The page in a browser: what it shows is what the command line prints, and nothing it asks for leaves this machine.

Sweeps, comparison and validation stand at the end.
"""

import csv
import json
import re
import shlex
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmviewer.analyzing.analysis import analyze
from llmviewer.cli import cli
from llmviewer.reports.phrases import between, expectation
from llmviewer.units import seconds

pytest.importorskip("dash")

from llmviewer.webapp import options, results
from llmviewer.webapp.screenshots import open_page, serving, wait_until_loaded
from llmviewer.webapp.state import TABS

pytestmark = pytest.mark.slow("draws in a browser")
ROOT = Path(__file__).resolve().parent.parent
PLAIN = "?tab=compare"  # has no figures without pins: where what stands above the tabs is all that is asked


LATE = "reading 'isHeadless'"  # of cytoscape, which fits a graph to its window a moment after a tab took it away


@pytest.fixture(scope="module")
def server():
    with serving() as url:
        yield url


@pytest.fixture(scope="module")
def window(browser):
    """A page that tests have after each other: what a browser has compiled once it has not to compile again."""
    found = browser.new_context(accept_downloads=True).new_page()
    found.set_default_timeout(60_000)
    return found


@pytest.fixture
def page(window, server):
    """A page as a new one; whatever it asks for has to be here, and nothing may go wrong in it."""
    wrong = []
    heard = {
        "request": lambda r: None if r.url.startswith((server, "data:", "blob:")) else wrong.append(r.url),
        "pageerror": lambda error: None if LATE in str(error) else wrong.append(str(error)),
        "response": lambda r: wrong.append(f"{r.status} {r.url}") if r.status >= 400 else None,
    }
    for event, told in heard.items():
        window.on(event, told)
    window.set_viewport_size({"width": 1280, "height": 900})
    yield window
    for event, told in heard.items():
        window.remove_listener(event, told)
    window.evaluate("sessionStorage.clear()")
    window.goto("about:blank")
    assert wrong == []


def cards(page):
    """The numbers to see first, by their labels."""
    return dict(
        page.eval_on_selector_all(
            ".card", "a => a.map(c => [c.children[0].innerText, c.querySelector('dd span').innerText])"
        )
    )


def printed(*arguments):
    """The command line's JSON of the same setting."""
    result = CliRunner().invoke(cli, ["analyze", *arguments, "--format", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)["generation"]


def fill(page, name, value):
    page.fill(f"#{name}", value)
    page.press(f"#{name}", "Enter")
    page.wait_for_timeout(300)
    wait_until_loaded(page)


def test_a_change_of_bits_gives_the_numbers_of_the_command_line(page, server):
    open_page(page, f"{server}{PLAIN}")
    before = printed("llama-3.1-8b", "h100-sxm")
    assert cards(page)["TPOT"] == seconds(before["tpot_s"])
    fill(page, "quant", "W4A16g128")
    after = printed("llama-3.1-8b", "h100-sxm", "--quant", "W4A16g128")
    assert after["tpot_s"] < before["tpot_s"]
    assert cards(page)["TPOT"] == seconds(after["tpot_s"])
    assert cards(page)["TTFT"] == seconds(after["ttft_s"])
    assert "quant=W4A16g128" in page.url
    fill(page, "batch", "32")
    assert cards(page)["TPOT"] == seconds(
        printed("llama-3.1-8b", "h100-sxm", "--quant", "W4A16g128", "--batch", "32")["tpot_s"]
    )
    open_page(page, f"{server}{PLAIN}&batch=16")
    fill(page, "batch", "1")  # the value before the link was read
    assert cards(page)["TPOT"] == seconds(before["tpot_s"])
    assert "batch" not in page.url


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


def test_click_on_a_narrow_page_scrolls_to_the_inspector(page, server):
    page.set_viewport_size({"width": 400, "height": 900})
    open_page(page, server)
    page.locator("#operators").evaluate("table => table.scrollIntoView()")  # rows are drawn when they are seen
    page.click("#operators .ag-row:has-text('lm_head') .ag-cell >> nth=0")
    page.wait_for_function("document.querySelector('#inspected').innerText.startsWith('lm_head')")
    page.wait_for_function("Math.abs(document.querySelector('.inspector').getBoundingClientRect().top) < 2")


def test_three_devices_reload_from_the_link(page, server):
    open_page(page, f"{server}{PLAIN}&on=h100-sxm|l40s|mi300x&phase=prefill&batch=4")
    names = page.eval_on_selector_all(".totals tbody th", "all => all.map(c => c.innerText.split('\\n')[0])")
    assert names == ["h100-sxm", "l40s", "mi300x"]
    shown = page.inner_text(".totals")
    for name in names:
        assert seconds(analyze("llama-3.1-8b", name, batch=4).generation.ttft_s) in shown
    page.reload()
    wait_until_loaded(page)
    assert page.inner_text(".totals") == shown
    assert page.locator("#phase input:checked").get_attribute("value") == "prefill"
    assert page.input_value("#batch") == "4"


def test_invalid_link_shows_notices_and_defaults(page, server):
    open_page(page, f"{server}?model=../../etc/passwd&batch=0&quant=nonsense")
    notices = page.inner_text("#notices")
    assert "no '../../etc/passwd'" in notices
    assert "batch" in notices
    assert "quantization must be" in notices
    assert page.url == server
    assert "Llama 3.1 8B" in page.inner_text("#answer h2")


def test_error_appears_beside_its_control_and_previous_results_stay(page, server):
    open_page(page, f"{server}{PLAIN}")
    before = page.inner_text("#answer")
    fill(page, "quant", "W17")
    assert "bits must be" in page.inner_text("#error-quant")
    assert page.inner_text("#answer") == before
    fill(page, "batch", "2")
    assert "batch 2" in page.inner_text("#answer")
    assert page.input_value("#quant") == "W17"
    fill(page, "quant", "W8A16")
    assert page.inner_text("#error-quant") == ""
    page.locator("#answer h2", has_text="W8A16").wait_for()


def test_a_config_and_a_broken_one(page, server, tmp_path):
    config = {
        "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "tie_word_embeddings": True, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    }  # fmt: skip
    good, broken = tmp_path / "tiny.json", tmp_path / "broken.json"
    good.write_text(json.dumps(config))
    broken.write_text('{"model_type": "llama", ')
    open_page(page, f"{server}{PLAIN}")
    page.set_input_files("#model-file input", broken)
    page.wait_for_function("document.querySelector('#error-model').innerText.includes('is not JSON')")
    assert "broken.json:1" in page.inner_text("#error-model")
    assert "Llama 3.1 8B" in page.inner_text("#answer h2")
    page.set_input_files("#model-file input", good)
    page.wait_for_function("document.querySelector('#answer h2').innerText.startsWith('tiny')")
    wait_until_loaded(page)
    expected = analyze(str(good), "h100-sxm").generation
    assert cards(page)["TPOT"] == seconds(expected.tpot_s)
    other = page.context.new_page()  # where the file has never been: it is in the link
    open_page(other, page.url)
    assert other.inner_text("#answer h2").startswith("tiny")
    other.close()


def test_a_device_of_ones_own_and_a_number_changed(page, server, tmp_path):
    text = (ROOT / "hardware" / "l40s.yaml").read_text()
    mine = tmp_path / "mine.yaml"
    mine.write_text(re.sub(r"(?m)^name: .*$", "name: mine", re.sub(r"(?m)^aliases: .*$", "", text)))
    open_page(page, f"{server}{PLAIN}")
    page.set_input_files("#on-file input", mine)
    page.wait_for_function("document.querySelectorAll('.totals tbody tr').length == 2")
    assert "file:mine.yaml" in page.inner_text(".totals")
    open_page(page, f"{server}{PLAIN}&set=h100-sxm:memory.bandwidth=2x")
    expected = analyze("llama-3.1-8b", "h100-sxm", hardware_set=["memory.bandwidth=2x"])
    assert cards(page)["TPOT"] == seconds(expected.generation.tpot_s)
    page.click("text=Device numbers and what-ifs")
    cell = page.locator("#numbers .ag-row:has-text('memory.bandwidth') [col-id=value]")
    cell.dblclick()
    page.keyboard.press("Control+a")
    page.keyboard.type("3x")
    page.keyboard.press("Enter")
    page.wait_for_function("location.search.includes('3x')")
    wait_until_loaded(page)
    expected = analyze("llama-3.1-8b", "h100-sxm", hardware_set=["memory.bandwidth=3x"])
    assert cards(page)["TPOT"] == seconds(expected.generation.tpot_s)


def test_the_report_is_downloaded_and_opens_by_itself(page, server, tmp_path):
    open_page(page, f"{server}{PLAIN}&batch=8")
    with page.expect_download() as download:
        page.click("#save-html")
    file = tmp_path / "report.html"
    download.value.save_as(file)
    assert download.value.suggested_filename == "llama-3.1-8b-h100-sxm.html"
    report = page.context.new_page()
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
    ring = "parseFloat(getComputedStyle(e).outlineWidth) >= 2 || e.type === 'radio' || e.type === 'file'"
    focused = f"(() => {{ const e = document.activeElement; return [e.id, !!e.closest('#tab'), {ring}] }})()"
    for _ in range(80):
        page.keyboard.press("Tab")
        name, in_tabs, ringed = page.evaluate(focused)
        assert ringed, name
        seen.add(name)
        if in_tabs:
            break
    assert {"model", "on", "quant", "batch", "techniques", "techniques-chosen", "save-html"} <= seen
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#network")
    assert "tab=network" in page.url
    assert page.locator("#label-batch").get_attribute("for") == "batch"
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, [role=slider], input:not([type=hidden]):not([aria-hidden])')]"
        ".filter(e => e.offsetParent && !e.labels?.length && !e.title && !e.getAttribute('aria-label')"
        "&& !e.innerText.trim() && !e.getAttribute('data-title') && !e.closest('.ag-root')).map(e => e.outerHTML)"
    )
    assert nameless == []


@pytest.mark.parametrize("pins", ["", "&pins=batch%3D8|model%3Dgpt2"], ids=["alone", "with pins"])
def test_nothing_is_wider_than_the_page(page, server, pins):
    """Than a phone, nor than a desk that it is taken to."""
    page.set_viewport_size({"width": 400, "height": 900})
    open_page(page, f"{server}?on=h100-sxm|l40s{pins}")
    for tab in TABS:
        page.set_viewport_size({"width": 400, "height": 900})
        page.check(f"#tab input[value={tab}]", force=True)
        page.wait_for_function("tab => tab === 'overview' || location.search.includes(`tab=${tab}`)", arg=tab)
        if tab == "serving":
            page.click("#serving-stop")  # widths need no points
        wait_until_loaded(page)
        for width in (400, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            wait_until_loaded(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (tab, width)


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
    assert head.startswith('"operator","device","bound","time')
    assert '"weights [B]"' in head  # also what the page does not show
    decode = analyze("llama-3.1-8b", "h100-sxm").phases.decode.operators
    (row,) = [row for row in csv.reader(rows) if row[0] == "lm_head"]
    assert float(row[3]) == decode[-1].bound_time_s
    assert len(rows) == len(decode)


def test_operator_table_shows_main_columns_without_scrolling_and_others_on_request(page, server):
    page.set_viewport_size({"width": 1440, "height": 900})
    open_page(page, f"{server}?on=h100-sxm|l40s")
    heads = "[...document.querySelectorAll('#operators .ag-header-cell')].map(c => c.innerText)"
    room = "(e => [e.scrollWidth, e.clientWidth])(document.querySelector('#operators .ag-center-cols-viewport'))"
    shown = ["operator", "device", "bound", "time >=", "share", "expected", "expected share", "OP/B"]
    page.wait_for_function(f"{heads}.filter(head => head.trim()).length === {len(shown)}")  # which are drawn last
    assert [" ".join(head.split()) for head in page.evaluate(heads)] == shown
    needed, there = page.evaluate(room)
    assert needed <= there
    assert not page.is_visible("text=scrolls sideways")
    page.click("#operators-all")
    page.wait_for_selector("text=Fewer columns")
    page.wait_for_selector("text=scrolls sideways")
    needed, there = page.evaluate(room)
    assert needed > there
    page.click("#operators-all")
    page.wait_for_selector("text=All columns")
    page.focus("#operators-csv")
    for _ in range(2):  # to the first head, and out again
        page.keyboard.press("Tab")
    assert not page.evaluate("!!document.activeElement.closest('#operators')")


def test_bound_expected_time_and_verdict_are_distinct(page, server):
    open_page(page, server)
    card = page.inner_text(".card:has-text('TPOT')").replace("\N{NO-BREAK SPACE}", " ")
    found = analyze("llama-3.1-8b", "h100-sxm")
    whole, step = found.generation, found.phases.decode
    assert f">= {seconds(whole.tpot_s)}" in card
    assert f"expected {expectation(whole, 'tpot')}" in card
    expected = between(step.expected_time_s, step.expected_low_s, step.expected_high_s)
    assert f" and {expected} in total" in page.inner_text(".picture:has(#times) figcaption")
    open_page(page, f"{server}{PLAIN}&model=llama-3.1-70b&on=h100-sxm|mi300x")
    assert page.locator(".totals tr:has(th:has-text('h100-sxm')) .alarm >> nth=0").inner_text() == "does not fit"
    assert page.locator(".totals tr:has(th:has-text('mi300x')) .alarm").count() == 0
    assert page.locator("#compare-times .errorbar path").count() == 2


def test_error_in_collapsed_settings_is_marked_on_their_header(page, server):
    open_page(page, f"{server}{PLAIN}")
    page.click("text=Parallelism")
    fill(page, "tp", "3")
    said = "getComputedStyle(document.querySelector('#controls > details:has(#tp) > summary'), '::after').content"
    assert page.evaluate(said) == "none"
    page.click("text=Parallelism")
    assert "a mistake" in page.evaluate(said)
    page.click("text=More")
    fill(page, "skew", "-1")
    assert page.inner_text("#error-skew") == "Expert skew must be a number from 0 to 10"


def test_page_shows_the_bottleneck_and_the_gain_of_fewer_bits(page, server):
    open_page(page, server)
    page.click("#model")
    page.keyboard.type("llama 3 70b", delay=20)
    page.click(".dash-dropdown-option:has-text('Llama 3 70B') >> nth=0")
    page.wait_for_function("document.querySelector('#answer h2').innerText.startsWith('Llama 3 70B')")
    wait_until_loaded(page)
    assert page.inner_text(".card:has-text('TPOT') .badge") == "memory-bound"
    assert "Decode is memory-bound; first step" in page.inner_text("#verdict > summary")
    page.click("#verdict > summary")
    assert page.inner_text("#advice").startswith("Decode is memory-bound: memory bandwidth (")
    page.wait_for_selector("#changes li:has-text('W4A16g128')")
    steps = [analyze("llama-3-70b", "h100-sxm", quant=quant).phases.decode.time_s for quant in (None, "W4A16g128")]
    before, after = (printed("llama-3-70b", "h100-sxm", *more)["tpot_s"] for more in ((), ("--quant", "W4A16g128")))
    said = page.inner_text("#changes li:has-text('W4A16g128')")
    assert f"{steps[0] / steps[1]:.3g}x faster" in said
    assert seconds(steps[1]) in said
    assert "then fits" in said
    page.click("#changes a:has-text('W4A16g128')")
    page.wait_for_function("document.querySelector('#answer h2').innerText.includes('W4A16g128')")
    wait_until_loaded(page)
    assert cards(page)["TPOT"] == seconds(after)
    assert page.input_value("#quant") == "W4A16g128"
    page.go_back()
    page.wait_for_function("!document.querySelector('#answer h2').innerText.includes('W4A16g128')")
    wait_until_loaded(page)
    assert cards(page)["TPOT"] == seconds(before)
    page.click("#changes li:has-text('W4A16g128') a:has-text('compare')")
    page.wait_for_selector(".compare .said")
    assert f"{before / after:.3g}x faster decode" in page.inner_text(".compare")


def test_model_search_ranks_the_best_match_first(page, server):
    open_page(page, f"{server}{PLAIN}")
    for search, first in (
        ("llama 3 70b", "Llama 3 70B"),
        ("llama-3.1-8b", "Llama 3.1 8B"),
        ("mixtral", "Mixtral 8x7B"),
        ("gemma 2b", "Gemma 2B"),
        ("70b llama 3.3", "Llama 3.3 70B"),
    ):
        page.click("#model")
        page.keyboard.type(search)  # before the list has drawn its search
        page.wait_for_function(
            "([text, first]) => document.querySelector('.dash-dropdown-search')?.value === text"
            " && document.querySelector('.dash-dropdown-option')?.innerText.startsWith(first)",
            arg=[search, first],
        )
        page.keyboard.press("Escape")
        page.wait_for_selector(".dash-dropdown-content", state="detached")


def test_clearing_a_search_restores_the_list(page, server):
    open_page(page, f"{server}{PLAIN}")
    listed = options.model_options(())
    found, restored = page.evaluate(
        "options => {"
        "  const find = (searched, listed) =>"
        "    window.dash_clientside.llmviewer.foundOptions(searched, listed, 'gpt2', 'list of the test');"
        "  const found = find('llama 3 70b', options);"
        "  return [found, find(null, find('meta-llama/llama-3.1-70b-instruct', found))];"
        "}",
        listed,
    )
    assert [option["value"] for option in found[:2]] == ["llama-3-70b", "llama-3.1-70b"]
    assert len(found) < len(listed)
    assert found[-1]["value"] == "gpt2"  # the chosen one, which the list has to know
    assert restored == listed


def test_technique_search_matches_descriptions(page, server):
    open_page(page, f"{server}{PLAIN}")
    page.click("#techniques-chosen")
    page.keyboard.type("drafts gamma")
    page.click(".dash-dropdown-option:has-text('speculative')")
    page.keyboard.press("Escape")
    page.wait_for_function("location.search.includes('techniques=speculative')")
    wait_until_loaded(page)
    fill(page, "techniques", "speculative:draft=llama-3.2-1b,gamma=3,alpha=0.8")
    expected = printed("llama-3.1-8b", "h100-sxm", "--with", "speculative:draft=llama-3.2-1b,gamma=3,alpha=0.8")
    assert cards(page)["TPOT"] == seconds(expected["tpot_s"])
    fill(page, "techniques", "speculative:draft=llama-3.2-1b,gamma=0")
    assert "gamma must be from 1 to" in page.inner_text("#error-techniques")
    assert cards(page)["TPOT"] == seconds(expected["tpot_s"])


def test_the_network_is_enlarged_coloured_searched_and_folded(page, server):
    logged = []

    def log(message):
        logged.append(message.text)

    page.on("console", log)
    open_page(page, f"{server}?tab=network")
    graph = "document.querySelector('#network')?._cyreg?.cy"
    page.wait_for_function(graph)
    page.remove_listener("console", log)
    assert not [text for text in logged if "wheel" in text]
    colour = f"{graph}.getElementById('embedding.embed_tokens').style('{{}}')"
    before = page.evaluate(colour.format("background-color"))
    width = page.evaluate("document.querySelector('#network').offsetWidth")
    page.click(".zoom.enlarge")
    assert page.evaluate("document.querySelector('#network').offsetWidth") == pytest.approx(1.25 * width, rel=0.02)
    page.click("#network-colour label:has-text('share of time')")
    page.wait_for_function(f"{colour.format('background-color')} !== '{before}'")
    assert page.is_visible("#network-legend .share")
    page.click("#network-colour label:has-text('expected / bound')")
    page.wait_for_function(f"{colour.format('label')}.includes('x ·')")
    drawn = page.evaluate(
        f"(() => {{ const cy = {graph}; const box = cy.elements().renderedBoundingBox();"
        "return [box.x1, box.y1, cy.width() - box.x2, cy.height() - box.y2] })()"
    )
    assert min(drawn) > -2  # nothing is cut off
    page.click(".zoom.fit")
    assert page.evaluate("document.querySelector('#network').offsetHeight") <= 900
    page.fill("#network-find", "down")
    page.wait_for_function("document.querySelector('#network-found').innerText === '1 of 17 operators'")
    page.wait_for_function(f"{colour.format('opacity')} === '0.3'")
    page.click("#network-fold")
    page.wait_for_function("document.querySelector('#network-found').innerText.includes('in 1 folded block')")
    fill(page, "batch", "2")
    page.wait_for_function(f"{graph}?.nodes('.folded').length === 3")  # which stay folded
    at = page.evaluate(f"{graph}.getElementById('folded layer').renderedPosition()")
    page.locator("#network").click(position=at)
    page.wait_for_function(f"{graph}?.getElementById('layer.down_proj').length === 1")


def test_in_the_dark_words_are_light(page, server):
    page.emulate_media(color_scheme="dark")
    open_page(page, server)
    page.wait_for_selector("#roofline .xtitle")
    ink = page.evaluate("getComputedStyle(document.querySelector('#roofline .xtitle')).fill")
    assert all(int(part) > 200 for part in re.findall(r"\d+", ink)[:3])
    shown = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert all(int(part) < 60 for part in re.findall(r"\d+", shown)[:3])
    page.emulate_media(color_scheme="light")


def test_sweeps_follow_their_controls_and_the_link(page, server):
    open_page(page, f"{server}?on=h100-sxm|l4&tab=sweeps&sweep=length")
    page.wait_for_selector("#sweep-map-1 .heatmaplayer image")
    assert page.locator("#sweep-decode .scatterlayer .trace").count() >= 2
    assert page.locator("#sweep-map-1 .heatmaplayer image").count() == 1
    page.click("#curves >> text=precision")
    page.wait_for_function("location.search.includes('curves=precisions')")
    wait_until_loaded(page)
    fill(page, "quants", "W16A16; W4A16; W17")
    assert "bits must be" in page.inner_text(".sweeps .error")
    names = page.eval_on_selector_all("#sweep-decode .legendtext", "all => all.map(t => t.textContent)")
    assert names[:2] == ["W16A16", "W4A16"]
    shown = page.inner_text(".sweeps table")
    page.reload()
    wait_until_loaded(page)
    assert page.inner_text(".sweeps table") == shown
    with page.expect_download() as download:
        page.click("#sweeps-csv")
    assert download.value.path().read_text().startswith("of,prompt,decode_step_s")
    open_page(page, f"{server}?on=h100-sxm&tab=sweeps&sweep=figure-5")
    assert "Rooflines of" in page.inner_text(".sweeps h3")


def test_setting_is_pinned_compared_and_unpinned(page, server):
    open_page(page, f"{server}?tab=compare")
    assert page.locator("#compare-times").count() == 0
    page.click("text=Pin this setting as A")
    page.wait_for_selector("text=Unpin A")
    fill(page, "quant", "W4A16g128")
    assert "A to now: " in page.inner_text(".said >> nth=1")
    page.fill("input[placeholder=name]", "usual")
    page.press("input[placeholder=name]", "Enter")
    page.wait_for_selector(".said:has-text('A usual to now: ')")
    wait_until_loaded(page)
    cells = page.eval_on_selector_all(
        ".compare table >> nth=1 >> tr:has(th:text-is('TPOT >=')) td",
        "all => all.map(c => c.innerText)",
    )
    times = [analyze("llama-3.1-8b", "h100-sxm", quant=quant).generation.tpot_s for quant in (None, "W4A16g128")]
    assert cells == [seconds(times[0]), f"{seconds(times[1])} ({times[1] / times[0]:.3g}x)"]
    other = page.context.new_page()  # the link has the pins
    open_page(other, page.url)
    assert other.inner_text(".compare") == page.inner_text(".compare")
    other.close()
    page.focus("text=Unpin A")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Pin this setting as A")
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
        page.set_input_files("#measurements input", file)
        page.wait_for_selector(f".panel:has(#measurements) .error:has-text('{message}')")
    page.set_input_files("#measurements input", good)
    page.wait_for_selector("#measured-scatter .scatterlayer .points path")
    assert page.locator("#measured-scatter .scatterlayer .trace >> nth=0 >> .points path").count() == 12
    assert "calibrated" in page.inner_text("#measured-result table >> nth=0")
    assert "".join(page.locator(".panel:has(#measurements) .error").all_inner_texts()) == ""
    with page.expect_download() as download:
        page.click("#measured-csv")
    assert len(download.value.path().read_text().splitlines()) == 13
    page.set_input_files("#measurements input", bad)  # and the last result stays
    page.wait_for_selector(".panel:has(#measurements) .error:has-text('bad.csv')")
    assert page.locator("#measured-scatter").count() == 1


def test_a_trace_is_dropped_in_and_stays_while_settings_change(page, server, tmp_path):
    example = ROOT / "reports" / "examples" / "timeline.csv"
    other, large = tmp_path / "notes.txt", tmp_path / "large.json"
    other.write_text("nothing")
    with large.open("wb") as file:
        file.truncate(50_000_001)
    open_page(page, f"{server}?tab=timeline&on=rtx-4090&quant=Q4_K_M&prompt=476&phase=prefill")
    assert page.locator("#timeline-parts").count() == 0
    page.set_input_files("#trace input", example)
    page.wait_for_selector("#timeline-parts .barlayer .point")
    asked = ["llama-3.1-8b", "rtx-4090", "--quant", "Q4_K_M", "--phase", "prefill", "--format", "json"]
    keys = ("measured_s", "bound_s", "expected_s")
    for batch in ("1", "2"):
        fill(page, "batch", batch)
        result = CliRunner().invoke(cli, ["timeline", str(example), *asked, "--prompt", "476", "--batch", batch])
        parts = json.loads(result.output)["parts"]
        page.wait_for_function(f"document.querySelector('#timeline-result').innerText.includes('batch {batch}')")
        cells = page.eval_on_selector_all(
            "#traced table >> nth=0 >> tbody tr", "all => all.map(r => [...r.cells].map(c => c.innerText))"
        )
        assert [row[:1] + row[2:3] + row[4:6] for row in cells] == [
            [part["part"], *(seconds(part[key]) if part[key] else "-" for key in keys)] for part in parts
        ]
    page.set_input_files("#trace input", large)
    said = "large.json: must have at most 50,000,000 bytes; got 50,000,001; open larger traces with llmviewer web"
    page.wait_for_selector(f"#tracing .error:has-text('{said}')")
    page.set_input_files("#trace input", other)
    page.wait_for_selector("#timeline-error:has-text('notes.txt: must be a trace of torch.profiler')")
    assert page.locator("#timeline-parts").count() == 1  # the last result stays
    page.click("#tab >> text=Glossary")
    page.wait_for_selector(".terms")
    assert not page.is_visible("#traced")


# When the server does not answer


def test_results_of_earlier_settings_are_dimmed_while_the_server_works_fails_or_is_gone(browser, monkeypatch):
    def faint(what):
        return float(page.evaluate(f"getComputedStyle(document.querySelector('{what}')).opacity")) < 1

    def change(batch):
        page.fill("#batch", batch)
        page.press("#batch", "Enter")

    def recover(batch):
        page.click("#try-again")
        page.locator("#answer h2", has_text=f"batch {batch},").wait_for()
        wait_until_loaded(page)
        page.wait_for_selector("#connection", state="hidden")
        assert not faint("#answer")
        assert not faint("#content")

    right, slow, wrong = results.analyze, threading.Event(), threading.Event()

    def analyzed(setting, request, **asked):
        if request.batch == 5:
            slow.wait(30)
        return right(setting, request, **asked)

    def fail(error=None):
        if wrong.is_set():
            raise RuntimeError("of the test")

    monkeypatch.setattr(results, "analyze", analyzed)
    context = browser.new_context()
    page = context.new_page()
    with serving(lambda server: server.before_request(fail)) as url:
        open_page(page, url)
        assert page.is_hidden("#connection")
        change("5")  # which takes long
        page.wait_for_selector("#connection", state="visible")
        assert page.inner_text("#connection") == "Working. Faded results are of earlier settings."
        assert "batch 1," in page.inner_text("#answer h2")
        assert faint("#answer")
        assert faint("#content")
        slow.set()
        page.locator("#answer h2", has_text="batch 5,").wait_for()
        wait_until_loaded(page)
        page.wait_for_selector("#connection", state="hidden")
        wrong.set()
        change("6")  # with which the server fails
        page.wait_for_selector("#connection.failed")
        assert page.inner_text("#connection").startswith("Server error (status 500); details are in its log. Faded")
        assert "batch 5," in page.inner_text("#answer h2")
        assert faint("#answer")
        assert faint("#content")
        wrong.clear()
        recover(6)
    change("7")  # of a server that is gone
    page.wait_for_selector("#connection.failed")
    assert page.inner_text("#connection").startswith("The server cannot be reached. Faded results are of earlier")
    assert page.input_value("#batch") == "7"
    assert "batch 6," in page.inner_text("#answer h2")
    assert faint("#answer")
    assert faint("#content")
    with serving(port=int(url.rsplit(":", 1)[1].strip("/"))):
        recover(7)
    context.close()


def test_a_decode_step_is_chosen_and_everything_follows(page, server):
    open_page(page, server)
    page.check("#step input[value=mean]", force=True)
    page.wait_for_function("document.querySelector('#verdict > summary').innerText.includes('mean step')")
    wait_until_loaded(page)
    step = analyze("llama-3.1-8b", "h100-sxm", kv_len=1088).phases.decode
    assert "step=mean" in page.url
    assert f"mean step >= {seconds(step.time_s)}" in page.inner_text("#verdict > summary")
    assert cards(page)["mean step"] == seconds(step.time_s)
    assert f"{seconds(step.time_s)} and" in page.inner_text(".picture:has(#times) figcaption")
    fill(page, "gen", "1000")
    assert cards(page)["mean step"] == seconds(analyze("llama-3.1-8b", "h100-sxm", kv_len=1524).phases.decode.time_s)


def test_a_pasted_config_is_a_model_under_its_own_name(page, server):
    config = {
        "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "tie_word_embeddings": True, "hidden_act": "silu", "rms_norm_eps": 1e-5, "_name_or_path": "me/Small-1B",
    }  # fmt: skip
    open_page(page, f"{server}{PLAIN}")
    page.click("text=or paste a config.json or YAML")
    page.fill("#model-paste", json.dumps(config))
    page.click("button.paste")
    page.wait_for_function("document.querySelector('#answer h2').innerText.startsWith('small-1b')")
    wait_until_loaded(page)
    page.fill("#model-paste", json.dumps(config | {"num_hidden_layers": 8}))
    page.click("button.paste")
    page.wait_for_function("document.querySelector('#answer h2').innerText.startsWith('small-1b-2')")


def test_serving_is_simulated_point_by_point_until_it_is_stopped(page, server):
    open_page(page, f"{server}?tab=serving&model=gpt2&prompt=32&gen=8&tp=2")
    page.wait_for_function("document.querySelector('#serving-progress').innerText === '5 of 5 points'")
    page.wait_for_selector("#serving-front .scatterlayer .points path")
    row = page.locator(".serving table tbody tr >> nth=0")
    assert row.inner_text().startswith("h100-sxm tp=2")
    page.focus("#tpot-slider [role=slider]")
    page.keyboard.press("Home")
    page.wait_for_function("document.querySelector('.serving').innerText.includes('TPOT 1.00 ms')")
    assert page.input_value("#tpot") == "1"
    page.fill("#ttft", "1")
    page.press("#ttft", "Enter")
    page.wait_for_function("document.querySelector('.serving').innerText.includes('TTFT 1.00 ms')")
    assert "ttft=1" in page.url
    assert page.inner_text("#serving-progress") == "5 of 5 points"  # which the browser kept
    assert not page.locator("#rates").is_visible()
    page.click("#load label:has-text('rates')")
    fill(page, "rates", "20, 5")
    page.wait_for_function("document.querySelector('#serving-progress').innerText === '2 of 2 points'")
    page.fill("#ttft", "2048")
    page.press("#ttft", "Enter")
    fill(page, "tpot", "64")
    page.wait_for_function("document.querySelector('.serving table')?.innerText.includes('arrivals/s')")
    assert page.locator(".serving table tbody tr").all_inner_texts()[-1].split("\t")[:2] == ["h100-sxm tp=2", "20"]
    assert page.inner_text("#plan-result") == ""
    fill(page, "quant", "fp8")
    page.click("#plan-start")
    page.wait_for_selector("#plan-result table tbody tr:has-text('h100-sxm')")
    assert page.inner_text("#plan-progress") == "1 of 1 searches"
    fill(page, "plan_rate", "11")
    page.wait_for_selector("#plan-bar", state="hidden")
    fill(page, "plan_rate", "10")  # of which the results are there
    page.wait_for_selector("#plan-result table tbody tr:has-text('h100-sxm')")
    page.click("#plan-result tbody a")
    page.wait_for_function("document.querySelector('#tab input[value=overview]').checked")
    assert "quant=fp8" in page.url


def test_sessions_are_simulated_and_a_point_has_its_report(page, server):
    open_page(page, f"{server}?tab=serving&model=gpt2&prompt=16&gen=8&tp=2")
    assert not page.locator("#session_turns").is_visible()
    page.click("#traffic label:has-text('sessions')")
    page.wait_for_selector("#session_turns:visible")
    fill(page, "session_turns", "2")
    fill(page, "think_time", "soon")
    assert "Think time [s] must be a time" in page.inner_text("#error-think_time")
    fill(page, "think_time", "0.1")
    fill(page, "replicas", "2")
    assert "traffic=sessions&session_turns=2&think_time=0.1&replicas=2" in page.url
    page.wait_for_function("document.querySelector('#serving-progress').innerText === '4 of 4 points'")
    page.locator("#serving-front .scatterlayer .trace:has(.points path)").first.locator(".points path").nth(2).click(
        force=True
    )
    page.wait_for_selector("#serving-report h3:has-text('sessions')")
    report = page.inner_text("#serving-report")
    assert "--session-turns 2 --think-time 0.1 --replicas 2 --requests" in report
    command = shlex.split(report[report.rindex("llmviewer simulate") :].splitlines()[0])
    result = CliRunner().invoke(cli, command[1:])
    assert result.exit_code == 0
    assert page.inner_text("#serving-report h3").split(":")[0] in result.output
