"""The HTML report: one self-contained file with the results of the analysis."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from plotly.offline import get_plotlyjs

import llmviewer
from llmviewer.analyzing.analysis import analyze
from llmviewer.comparing.comparison import compare
from llmviewer.reports.analysis import REPORT
from llmviewer.reports.comparison import REPORT as COMPARISON
from llmviewer.reports.phrases import expectation
from llmviewer.units import seconds


@pytest.fixture(scope="module")
def analysis():
    return analyze("llama-2-7b", "rtx-a6000", prompt=2048)


@pytest.fixture(scope="module")
def page(analysis):
    return REPORT.html(analysis)


class Tags(HTMLParser):
    """All tags with their attributes, and the words between them, scripts and styles left out."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.styles, self.inside = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in {"script", "style"}:
            self.inside = tag

    def handle_endtag(self, tag):
        if tag == self.inside:
            self.inside = ""

    def handle_data(self, data):
        if self.inside == "style":
            self.styles.append(data)
        elif not self.inside and data.strip():
            self.words.append(" ".join(data.split()))


def rows(page, part):
    """Cells of each row of the operator tables, `part` being "tbody" or "tfoot"."""
    tables = re.findall(r'<table class="operators">.*?</table>', page, re.DOTALL)
    bodies = [re.search(rf"<{part}>(.*?)</{part}>", table, re.DOTALL)[1] for table in tables]
    return [
        [re.findall(r">([^<]*)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)]
        for body in bodies
    ]


def test_nothing_is_fetched_from_elsewhere(page):
    tags = Tags(page)
    for tag, attributes in tags.tags:
        for name, value in attributes.items():
            if re.search(r"https?:|^//", value or ""):
                assert (tag, name) == ("a", "href"), (tag, name, value)
        assert tag not in {"iframe", "object", "embed", "base"}
        assert "src" not in attributes
    assert [attributes["href"] for tag, attributes in tags.tags if tag == "link"] == ["data:,"]
    assert not re.search(r"url\(|@import", "".join(tags.styles))


def test_no_figure_has_a_button_that_sends_it_to_a_server(page):
    assert page.count('"showSendToCloud": false') == 4


def test_plotly_is_there_once(page):
    assert page.count(get_plotlyjs()) == 1


def test_page_states_the_request_and_the_results(analysis, page):
    words = Tags(page).words
    assert "Llama 2 7B on NVIDIA RTX A6000" in words
    assert "batch 1, prompt 2048, 128 generated, fp16 as published, flash attention" in words
    at = [words.index(label) for label in (
        "TTFT", "TPOT", "tokens/s", "E2E latency", "memory", "largest batch",
        "longest context",
    )]  # fmt: skip
    cards = {words[i]: tuple(words[i + 1 : end]) for i, end in pairwise((*at, at[-1] + 3))}
    whole = analysis.generation
    ttft, tpot, latency = (expectation(whole, what) for what in ("ttft", "tpot", "latency"))
    assert cards == {
        "TTFT": (">= 169 ms", "compute-bound", f"expected {ttft}", "prefill of 1 × 2048"),
        "TPOT": (">= 18.7 ms", "memory-bound", f"expected {tpot}", "mean of 127 decode steps"),
        "tokens/s": (
            "<= 50.41",
            f"expected {whole.expected_tokens_per_s:.4g}",
            "generated, of all sequences",
        ),
        "E2E latency": (">= 2.54 s", f"expected {latency}", "until token 128"),
        "memory": ("fits", "14.8 GB of 51.5 GB, 36.8 GB free"),
        "largest batch": ("29", "sequences of 2,176 tokens"),
        "longest context": ("63,588", "tokens, at batch 1; model maximum 4,096"),
    }


def test_page_explains_bounds_once(page):
    bound = ">=, <=: roofline bounds"
    (said,) = (words for words in Tags(page).words if bound in words)
    assert said == f"{bound}. Expected: measured kernels without gaps, 80 % interval."
    assert page.replace(get_plotlyjs(), "").count("roofline bounds") == 1


def test_each_phase_has_its_advice_and_its_roofline(analysis, page):
    words = Tags(page).words
    for name, phase in analysis.phases:
        assert f"{phase.advice[0].upper()}{phase.advice[1:]}." in words
        assert f"{phase.total.bound}-bound" in words
        assert f"Roofline of {name}: llama-2-7b on rtx-a6000" in words
        assert f'id="roofline-{name}"' in page


def test_tables_have_all_operators_in_launch_order_and_the_total(analysis, page):
    for (_, phase), table in zip(analysis.phases, rows(page, "tbody"), strict=True):
        assert [row[0] for row in table] == [op.name for op in phase.operators]
    prefill, decode = rows(page, "tbody")
    of_both = [{op.name: seconds(op.expected_time_s) for op in phase.operators} for _, phase in analysis.phases]
    wholes = [seconds(phase.total.expected_time_s) for _, phase in analysis.phases]
    assert prefill[2] == [
        "q_proj", "32", "2.20T", "1.07G", "1.07G", "-", "1024", "181T", "compute", "fp16", "12.2 ms",
        of_both[0]["q_proj"], "7.2%",
    ]  # fmt: skip
    assert decode[6] == [
        "attention", "32", "1.08G", "-", "524k", "1.07G", "1.01", "775G", "memory", "fp16", "1.40 ms",
        of_both[1]["attention"], "7.5%",
    ]  # fmt: skip
    assert [table[-1] for table in rows(page, "tfoot")] == [
        ["total", "", "27.6T", "13.2G", "22.1G", "2.15G", "737", "164T", "compute", "", "169 ms", wholes[0], "100%"],
        ["total", "", "14.3G", "13.2G", "10.9M", "1.07G", "1", "768G", "memory", "", "18.6 ms", wholes[1], "100%"],
    ]


def test_numbers_are_to_the_right_and_bounds_in_colour(page):
    assert '<td data-key="memory" class="memory">memory</td>' in page
    assert '<td data-key="compute" class="compute">compute</td>' in page
    assert '<td data-key="32" class="number">32</td>' in page


def test_memory_is_a_table_as_well(page):
    words = Tags(page).words
    at = words.index("KV cache of prompt and generated tokens")
    assert words[at - 3 : at + 3] == ["weights", "13.5 GB", "26.2%", words[at], "1.14 GB", "2.2%"]


def test_every_number_of_the_device_has_its_source(analysis, page):
    tags = Tags(page)
    for fact in analysis.hardware.facts:
        at = tags.words.index(fact.key)
        assert tags.words[at + 1] == fact.text
        assert tags.words[at + 2].startswith(fact.source)
    links = {attributes["href"] for tag, attributes in tags.tags if tag == "a"}
    assert links == {source.url for source in analysis.hardware.sources.values() if source.url}


def test_the_foot_has_the_version_and_the_inputs(page):
    words = Tags(page).words
    assert words[-2] == f"Made by llmviewer {llmviewer.__version__} from these inputs"
    assert json.loads(words[-1]) == {
        "model": "llama-2-7b", "hardware": "rtx-a6000", "batch": 1, "prompt": 2048, "gen": 128, "kv_len": 2049,
        "images": 0, "quant": "as published", "attention": "flash", "accounting": "faithful", "mla": "auto",
        "expert_skew": 0, "mtp": False, "layout": "", "devices": 1, "offload": "", "host": "", "host_set": [],
        "on_host": "", "hardware_set": [], "techniques": [], "library": "", "engine": "", "engine_version": "",
        "experts_kernel": "", "memory_fraction": None, "max_num_seqs": None, "max_num_batched_tokens": None,
        "max_model_len": None,
        "profiles": [], "batch_found": False, "tpot_goal_s": None,
    }  # fmt: skip


def test_a_model_that_does_not_fit_raises_the_alarm():
    page = REPORT.html(analyze("llama-3.1-70b", "h100-sxm"))
    words = Tags(page).words
    assert words[words.index("memory") + 1 : words.index("memory") + 3] == [
        "does not fit",
        "142 GB of 85.5 GB, 56.2 GB too much; fits with --tp 2 or --quant fp8 or --offload weights=0.4",
    ]
    assert words[words.index("largest batch") + 1] == words[words.index("longest context") + 1] == "none"
    assert page.count('<dd class="alarm">') == 3


def test_without_a_decode_step_there_is_no_time_per_output_token():
    words = Tags(REPORT.html(analyze("gpt2", "t4", gen=1))).words
    at = words.index("TPOT")
    assert words[at + 1 : at + 3] == ["-", "no decode steps"]


def test_notes_are_on_the_page():
    page = REPORT.html(analyze("gpt2", "t4", hardware_set=["memory.bandwidth=2x"]))
    assert "What-if: memory.bandwidth=2x replaces the number of the device&#39;s file." in page


def test_names_cannot_bring_markup_or_scripts(analysis):
    evil = "</script><script>alert(1)</script>"
    model = replace(analysis.model, name=evil, title=evil)
    page = REPORT.html(replace(analysis, model=model, notes=(evil,)))
    assert evil not in page
    assert page.count("<script") == 6  # plotly.js, four figures, the sorting of tables


def test_sources_link_to_web_pages_only(analysis):
    sources = {key: replace(source, url="javascript:alert(1)") for key, source in analysis.hardware.sources.items()}
    page = REPORT.html(replace(analysis, hardware=replace(analysis.hardware, sources=sources)))
    assert not [tag for tag, _ in Tags(page).tags if tag == "a"]


def test_the_same_analysis_gives_the_same_page(analysis, page):
    assert REPORT.html(analysis) == page


@pytest.fixture(scope="module")
def file(page, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


@pytest.mark.slow("draws in a browser")
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_browser_shows_the_page_without_requests(browser, file, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    asked, complaints = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("console", lambda message: complaints.append(message.text))
    tab.goto(file.as_uri())
    tab.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 4")
    assert asked == [file.as_uri()]
    assert complaints == []
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    ink = tab.evaluate("getComputedStyle(document.querySelector('#time-bars .xtick text')).fill")
    assert ink == {"light": "rgb(42, 46, 51)", "dark": "rgb(228, 232, 236)"}[scheme]
    context.close()


@pytest.mark.slow("draws in a browser")
def test_a_click_on_a_column_sorts_the_table_by_its_numbers(browser, file):
    tab = browser.new_page()
    tab.goto(file.as_uri())
    table = tab.locator(".operators").first
    first = table.locator("tbody th").first
    table.get_by_role("button", name="weights [B]").click()
    assert first.inner_text() == "gate_proj"  # 2.89 GB before 262 kB
    table.get_by_role("button", name="time").click()
    table.get_by_role("button", name="time").click()
    assert first.inner_text() == "embed_tokens"  # 43.7 us before 1.40 ms
    table.get_by_role("button", name="operator").click()
    assert table.locator("tbody th").nth(1).inner_text() == "attn_norm"
    tab.close()


MODE_BAR = """picture => {
  const bar = picture.querySelector(".modebar"), box = bar.getBoundingClientRect();
  let opacity = 1;
  for (let part = bar.querySelector(".modebar-group"); part !== picture; part = part.parentElement)
    opacity *= getComputedStyle(part).opacity;
  const below = [picture.querySelector(".bglayer, .nsewdrag"), ...picture.querySelectorAll(".annotation")];
  return {opacity, covered: below.some(part => part.getBoundingClientRect().top < box.bottom)};
}"""

RANGES = """picture => {
  const {xaxis, yaxis} = picture.querySelector(".js-plotly-plot").layout;
  return [...xaxis.range, ...yaxis.range];
}"""


@pytest.mark.slow("draws in a browser")
@pytest.mark.parametrize("touch", [False, True])
def test_the_mode_bar_shows_on_a_figure_that_is_pointed_at_and_covers_nothing_of_it(browser, file, touch):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, has_touch=touch, is_mobile=touch)
    tab = context.new_page()
    tab.goto(file.as_uri())
    for name in ("roofline-prefill", "roofline-decode", "time-bars", "memory-bar"):
        picture = tab.locator(f".picture:has(#{name})")
        picture.locator(".modebar-group").first.wait_for(state="attached")
        assert picture.evaluate(MODE_BAR) == {"opacity": 0, "covered": False}
        ranges = picture.evaluate(RANGES)
        picture.tap() if touch else picture.hover()
        tab.wait_for_timeout(500)  # the bar fades in
        assert picture.evaluate(MODE_BAR) == {"opacity": 1, "covered": False}
        assert picture.evaluate(RANGES) == ranges
    context.close()


@pytest.mark.parametrize(("name", "apart", "alike"), [
    ("gpt-oss-20b", ["attention (local)", "attention (global)"], ["q_proj", "expert_up_proj"]),
    ("deepseek-v2-lite", [], ["q_proj", "mlp_act", "expert_up_proj"]),
    ("mamba-2.8b", [], ["in_proj", "scan"]),
])  # fmt: skip
def test_operators_have_the_name_of_their_block_where_they_differ_between_blocks(name, apart, alike):
    names = re.findall(r'<th scope="row" data-key="\d+">([^<]*)</th>', REPORT.html(analyze(name, "h200-sxm")))
    for one in apart + alike:
        assert names.count(one) == 2, one  # in prefill and in decode
    assert [one for one in names if "(" in one] == 2 * apart


@pytest.mark.slow("draws the figures of comparisons")
def test_comparison_page_counts_settings_left_out_of_figures():
    found = compare("llama-3.1-70b", ["h100-sxm", "mi300x", "l40s"])
    words = " ".join(Tags(COMPARISON.html(found)).words)
    assert "Not in the figures: 2 settings (2 do not fit)." in " ".join(words.split())
    one = compare("llama-3.1-8b", ["h100-sxm", "l4"])
    assert "Figures leave out" not in COMPARISON.html(one)
