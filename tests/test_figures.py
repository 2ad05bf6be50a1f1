"""Figures as data: what is drawn where, and the paper's figures 6 to 8 to the digits of its tool."""

import re
from dataclasses import replace
from html import escape
from itertools import pairwise

import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.devices.files import load_hardware
from llmviewer.errors import InputError
from llmviewer.reports import drawing, figures, roofline_points
from llmviewer.reports.operator_table import number
from llmviewer.reports.plot import draw, write
from llmviewer.resource import matrix
from llmviewer.units import seconds, si

# The ancestor's table has 309.677 TOP/s in int8 for the RTX A6000, and half of that in fp16.
PAPER_A6000 = load_hardware("rtx-a6000", ["matrix.fp16=154.8385 TOP/s"])
QUANTS_OF_MEMORY = ("W16A16", "W4A16", "W4KV4", "W4A4KV4")

MEMORY = {  # (batch, tokens, phase): (weights, KV cache, activations, total) relative to W16A16, of each precision
    (1, 1024, "decode"): (
        (0.9680, 0.0320, 0.0000, 1.0000),
        (0.2420, 0.0320, 0.0000, 0.2740),
        (0.2420, 0.0080, 0.0000, 0.2500),
        (0.2420, 0.0080, 0.0000, 0.2500),
    ),
    (1, 4096, "decode"): (
        (0.8832, 0.1168, 0.0000, 1.0000),
        (0.2208, 0.1168, 0.0000, 0.3376),
        (0.2208, 0.0292, 0.0000, 0.2500),
        (0.2208, 0.0292, 0.0000, 0.2500),
    ),
    (16, 1024, "decode"): (
        (0.6540, 0.3459, 0.0001, 1.0000),
        (0.1635, 0.3459, 0.0001, 0.5095),
        (0.1635, 0.0865, 0.0001, 0.2501),
        (0.1635, 0.0865, 0.0000, 0.2500),
    ),
    (1, 1024, "prefill"): (
        (0.9564, 0.0316, 0.0120, 1.0000),
        (0.2391, 0.0316, 0.0120, 0.2827),
        (0.2391, 0.0079, 0.0120, 0.2590),
        (0.2391, 0.0079, 0.0030, 0.2500),
    ),
    (1, 4096, "prefill"): (
        (0.7925, 0.1048, 0.1027, 1.0000),
        (0.1981, 0.1048, 0.1027, 0.4056),
        (0.1981, 0.0262, 0.1027, 0.3270),
        (0.1981, 0.0262, 0.0257, 0.2500),
    ),
    (16, 1024, "prefill"): (
        (0.5781, 0.3058, 0.1162, 1.0000),
        (0.1445, 0.3058, 0.1162, 0.5665),
        (0.1445, 0.0764, 0.1162, 0.3371),
        (0.1445, 0.0764, 0.0290, 0.2500),
    ),
}
DECODE_MS = {  # batch: a step at 1024 tokens in W16A16, W8A16, W4A16, W2A16, W1A16
    1: (34.5943, 17.8604, 9.4935, 5.3100, 3.2183),
    2: (35.7207, 18.9869, 10.6199, 6.4365, 4.3447),
    4: (37.9736, 21.2398, 12.8728, 8.6894, 6.5976),
    8: (42.4795, 25.7456, 17.3787, 13.1952, 11.1035),
    16: (51.4911, 34.7572, 26.3903, 22.2068, 20.5092),
    24: (60.5027, 43.7688, 35.4019, 31.2184, 30.7504),
    32: (69.5143, 52.7805, 44.4135, 41.0182, 40.9987),
    48: (87.5376, 70.8037, 62.4368, 61.5007, 61.4980),
    63: (104.4344, 87.7005, 80.7562, 80.7161, 80.7161),
}
PREFILL_MS = {  # tokens: batch 1, in the same precisions
    16: (33.7631, 17.0292, 8.6623, 4.4788, 2.7812),
    32: (34.0669, 17.3330, 8.9661, 5.5708, 5.5441),
    64: (34.7000, 17.9662, 11.1756, 11.1223, 11.0956),
    100: (35.4532, 18.7193, 17.4618, 17.4085, 17.3818),
    128: (36.0688, 22.4876, 22.3810, 22.3276, 22.3010),
    160: (36.8044, 28.1415, 28.0349, 27.9815, 27.9549),
    200: (37.7718, 35.2569, 35.1502, 35.0969, 35.0702),
    256: (45.5213, 45.3080, 45.2013, 45.1480, 45.1213),
    384: (68.8878, 68.6745, 68.5678, 68.5145, 68.4878),
    512: (92.8004, 92.5871, 92.4804, 92.4271, 92.4004),
    768: (142.2640, 142.0507, 141.9440, 141.8907, 141.8640),
    1023: (193.7062, 193.4928, 193.3862, 193.3328, 193.3062),
}


@pytest.fixture(scope="module")
def fits():
    return analyze("llama-2-7b", "rtx-a6000", prompt=2048)


@pytest.fixture(scope="module")
def too_large():
    return analyze("llama-3.1-70b", "h100-sxm")


def points(figure):
    """(intensity, performance, colour, size, hover) of each marker that stands for operators."""
    return [
        row
        for trace in figure.data
        if trace.hovertext and trace.legendgroup != "expected"
        for row in zip(trace.x, trace.y, trace.marker.color, trace.marker.size, trace.hovertext, strict=True)
    ]


def texts(figure):
    return [note.text for note in figure.layout.annotations]


def test_memory_by_precision_is_figure_6_of_the_paper():
    figure = figures.memory_bars("llama-2-13b", None, quants=QUANTS_OF_MEMORY, cases=tuple(MEMORY), accounting="survey")
    assert [trace.name for trace in figure.data] == ["weights", "KV cache", "activations"]
    bars = list(zip(*(trace.y for trace in figure.data), strict=True))
    expected = [row for rows in MEMORY.values() for row in rows]
    assert len(bars) == len(expected) == 24
    for bar, row in zip(bars, expected, strict=True):
        assert tuple(f"{part:.4f}" for part in (*bar, sum(bar))) == tuple(f"{part:.4f}" for part in row)


def test_memory_bars_show_bytes_on_hover():
    figure = figures.memory_bars("llama-2-13b", None, cases=((1, 1024, "prefill"),), accounting="survey")
    assert [list(row) for row in figure.data[0].customdata[:2]] == [
        ["W16A16", "25.4 G", "26.5 G"],
        ["W4A16", "6.34 G", "7.50 G"],
    ]


def test_memory_bars_are_grouped_by_phase_batch_and_length():
    figure = figures.memory_bars("llama-2-13b", None, quants=("W16A16", "W4A16"), cases=((16, 1024, "decode"),))
    assert [list(level) for level in figure.data[0].x] == [["decode<br>16 ×<br>1024"] * 2, ["W16A16", "W4A16"]]


def test_memory_bars_mark_misfits():
    cases = ((1, 1024, "prefill"), (16, 1024, "prefill"))
    figure = figures.memory_bars("llama-2-13b", "rtx-3090", cases=cases, accounting="survey")
    crosses = figure.data[-1]
    assert crosses.name == "over 25.8 GB"
    assert [height is not None for height in crosses.y] == 2 * [True, False, False, False]
    figure = figures.memory_bars("llama-2-13b", "h100-sxm", cases=cases, accounting="survey")
    assert [trace.name for trace in figure.data] == ["weights", "KV cache", "activations"]


def test_decode_time_is_figure_7_of_the_paper():
    figure = figures.decode_time("llama-2-13b", PAPER_A6000, batches=tuple(DECODE_MS), accounting="survey")
    assert [trace.name for trace in figure.data] == ["W16A16", "W8A16", "W4A16", "W2A16", "W1A16"]
    for trace, expected in zip(figure.data, zip(*DECODE_MS.values(), strict=True), strict=True):
        assert trace.x == tuple(DECODE_MS)
        assert [f"{ms:.4f}" for ms in trace.y] == [f"{ms:.4f}" for ms in expected]


def test_prefill_time_is_figure_8_of_the_paper():
    figure = figures.prefill_time("llama-2-13b", PAPER_A6000, lengths=tuple(PREFILL_MS), accounting="survey")
    assert figure.layout.xaxis.type == "log"
    for trace, expected in zip(figure.data, zip(*PREFILL_MS.values(), strict=True), strict=True):
        assert [f"{ms:.4f}" for ms in trace.y] == [f"{ms:.4f}" for ms in expected]


def test_times_are_drawn_from_batch_1_to_64_and_from_16_to_1024_tokens():
    assert figures.decode_time("opt-125m", "a10").data[0].x == tuple(range(1, 65))
    prefill = figures.prefill_time("opt-125m", "a10")
    assert prefill.data[0].x == tuple(range(16, 1025))
    assert prefill.layout.xaxis.ticktext == ("16", "32", "64", "128", "256", "512", "1024")


def test_precision_figures_use_the_requested_attention():
    cases = ((1, 1024, "prefill"),)
    for figure, own in (
        (figures.memory_bars, {"cases": cases}), (figures.decode_time, {}), (figures.prefill_time, {}),
    ):  # fmt: skip
        usual, flash, eager = (
            figure("gpt2", "t4", attention=attention, **own).data[-1].y for attention in (None, "flash", "eager")
        )
        assert list(usual) == list(flash)
        assert all(more > less for more, less in zip(eager, flash, strict=True)), figure.__name__


ASKED = {
    "model": "gpt2", "hardware": "t4", "attention": None, "accounting": "faithful", "mla": "auto", "hardware_set": (),
    "batch": 1, "prompt": 1024, "phase": "prefill",
}  # fmt: skip


@pytest.mark.parametrize("name", ["memory", "decode-time", "prefill-time"])
def test_plot_compares_the_precisions_that_semicolons_separate(name):
    wanted = ["W8A8", "W4A16g128,down_proj=W8A16"]
    figure = draw(name, quant="W8A8; W4A16g128,down_proj=W8A16", **ASKED)
    assert (list(figure.data[0].x[1][:2]) if name == "memory" else [trace.name for trace in figure.data]) == wanted


def test_plot_draws_the_roofline_of_one_precision():
    figure = draw("roofline", quant="W8A8", **ASKED)
    assert any(text.endswith("int8 matrix 130 TOP/s") for text in texts(figure))


def test_malformed_precision_list_error_states_the_syntax():
    for quant in ("W8A8;", ";W8A8", "W8A8;;W4A16"):
        with pytest.raises(InputError) as raised:
            draw("memory", quant=quant, **ASKED)
        assert str(raised.value) == (
            f"--quant must be precisions with a semicolon between any two, W16A16;W4A16; got {quant!r}"
        )


def test_a_figure_has_no_button_that_sends_it_to_a_server(tmp_path):
    write(draw("dtypes", quant=None, **ASKED), tmp_path / "dtypes.html")
    assert '"showSendToCloud": false' in (tmp_path / "dtypes.html").read_text()


def test_a_figure_alone_on_a_page_has_its_words_where_they_wrap(tmp_path):
    figure = draw("roofline", quant=None, **ASKED)
    title, about = figure.layout.title.text, figure.layout.title.subtitle.text
    write(figure, tmp_path / "roofline.html")
    page = (tmp_path / "roofline.html").read_text()
    assert f"<h1>{title}</h1>" in page
    assert f'<p class="soft">{escape(about)}</p>' in page
    assert page.count(title) == 2  # that of the window, too


def test_plot_hands_attention_on():
    for name in ("roofline", "memory", "decode-time", "prefill-time"):
        assert draw(name, quant=None, **{**ASKED, "attention": "eager"}) != draw(name, quant=None, **ASKED), name


def test_the_roof_bends_where_peak_and_bandwidth_meet(fits):
    figure = figures.roofline(fits, "prefill")
    roof = figure.data[0]
    peak = 154.8e12 * 2100 / 1800  # at the highest clock
    assert roof.x[1] == peak / 768e9 == 235.15625
    assert roof.y[1:] == (peak, peak)
    assert roof.y[0] / roof.x[0] == pytest.approx(768e9)
    assert "ridge point 235 OP/B<br>fp16 matrix 181 TOP/s" in texts(figure)
    survey = figures.roofline(analyze("llama-2-7b", "rtx-a6000", accounting="survey"))
    assert "ridge point 202 OP/B<br>fp16 matrix 155 TOP/s" in texts(survey)  # that of the paper, at datasheet rates
    memory, compute = figure.layout.shapes
    assert (memory.fillcolor, memory.x1) == (drawing.VERMILLION, 235.15625)
    assert (compute.fillcolor, compute.x0) == (drawing.GREEN, 235.15625)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_every_operator_with_ops_is_a_point_of_the_roofline_once(fits, phase):
    drawn = points(figures.roofline(fits, phase))
    names = [name for *_, hover in drawn for name in re.findall(r"(\w+) × \d+", hover)]
    assert sorted(names) == sorted(op.name for op in getattr(fits.phases, phase).operators if op.ops)


def test_operators_without_ops_are_left_out_and_named(fits):
    figure = figures.roofline(fits, "prefill")
    assert figure.layout.title.subtitle.text == (
        "batch 1, 2048 tokens at a context of 2048, >= 169 ms; not shown: embed_tokens (no OPs)"
    )


def test_points_lie_on_the_roof_and_have_the_colour_of_their_bound(fits):
    for intensity, performance, color, _, hover in points(figures.roofline(fits, "prefill")):
        if color == drawing.VERMILLION:
            assert "memory-bound" in hover
            assert performance == pytest.approx(intensity * 768e9)
        else:
            assert "compute-bound, by matrix fp16" in hover
            assert performance == pytest.approx(180.6e12, rel=0.01)  # attention uses the vector units besides


def test_expected_points_are_hollow_and_below_each_bound(fits):
    (trace,) = (t for t in figures.roofline(fits, "prefill").data if t.name == "expected")
    drawn = {(x, y) for x, y, *_ in points(figures.roofline(fits, "prefill"))}
    assert trace.marker.symbol == "circle-open"
    assert len(trace.x) == len(drawn)
    assert all(any(x == at and y <= top for at, top in drawn) for x, y in zip(trace.x, trace.y, strict=True))
    linear = next(y for text, y in zip(trace.hovertext, trace.y, strict=True) if "gate/up/down_proj" in text)
    alike = [op for op in fits.phases.prefill.operators if op.name in ("gate_proj", "up_proj", "down_proj")]
    assert linear == pytest.approx(sum(op.ops for op in alike) / sum(op.expected_time_s for op in alike))


def test_points_that_fall_together_are_one_that_names_them_all(fits):
    drawn = points(figures.roofline(fits, "prefill"))
    (largest,) = (row for row in drawn if "gate_proj" in row[-1])
    assert largest[0] == pytest.approx(1215, rel=0.01)
    assert largest[3] == max(size for *_, size, _ in drawn)
    alike = [op for op in fits.phases.prefill.operators if op.name in ("gate_proj", "up_proj", "down_proj")]
    ops, expected_s = sum(op.ops for op in alike), sum(op.expected_time_s for op in alike)
    assert largest[-1] == (
        "<b>gate_proj × 32, up_proj × 32, down_proj × 32</b> (linear, together)<br>"
        "17.7 TOP, 14.6 GB: weights 8.66 GB, activations 5.94 GB<br>"
        "1215 OP/B, attainable 181 TOP/s<br>compute-bound, by matrix fp16<br>98.2 ms, 58.2% of prefill<br>"
        f"expected {seconds(expected_s)} (compute), {si(ops / expected_s)}OP/s"
    )


def test_a_phase_that_there_is_not_is_refused(fits):
    with pytest.raises(InputError, match=r"^phase must be prefill or decode; got 'decoding'$"):
        figures.roofline(fits, "decoding")
    with pytest.raises(InputError, match=r"^bert-base-uncased does not generate: it has no decode step$"):
        figures.roofline(analyze("bert-base-uncased", "l4"), "decode")


def test_names_near_the_ridge_point_stand_to_the_left_where_a_phone_has_room():
    """BERT's q, k, v and o_proj are memory-bound at 279 OP/B, just short of the ridge point at 295."""
    figure = figures.roofline(analyze("bert-base-uncased", "h100-sxm"), "prefill")
    (note,) = (one for one in figure.layout.annotations if one.text.startswith("q/k/v"))
    assert (note.ax < 0, note.xanchor) == (True, "right")


def test_the_largest_points_are_labelled_with_all_their_names(fits):
    labels = [text.replace("\N{NO-BREAK SPACE}", " ") for text in texts(figures.roofline(fits, "prefill"))]
    assert labels[-4:] == ["mlp_act 3%", "attention 4%", "q/k/v/o_proj 29%", "gate/up/down_proj 58%"]
    labels = [text.replace("\N{NO-BREAK SPACE}", " ") for text in texts(figures.roofline(fits, "decode"))]
    assert labels[-3:] == ["attention 8%", "lm_head 2%", "q/k/v/o/gate/up/<br>down_proj 91%"]


@pytest.mark.parametrize(
    ("model", "device", "asked"),
    [
        ("llama-2-7b", "rtx-a6000", {"accounting": "survey", "prompt": 2048}),
        ("llama-3.1-70b", "h100-sxm", {"batch": 16}),
        ("llama-3-8b", "rtx-a6000", {"quant": "W8A8"}),
        ("deepseek-v3", "h200-sxm", {"batch": 64}),
        ("deepseek-v3", "h100-sxm", {}),
    ],
)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_labels_of_close_points_stand_below_each_other(model, device, asked, phase):
    figure = figures.roofline(analyze(model, device, **asked), phase)
    low, high = figure.layout.yaxis.range
    height = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    labels = [note for note in figure.layout.annotations if "%" in note.text]
    spans = []
    for note in labels:
        upper = (high - note.y) / (high - low) * height + note.ay
        spans.append((upper, upper + 13 * (1 + note.text.count("<br>"))))
    assert spans
    for (_, lower), (upper, _) in pairwise(sorted(spans)):
        assert lower <= upper + 0.01, spans
    assert all(lower <= height for _, lower in spans)


@pytest.mark.parametrize(
    ("model", "phase", "asked"),
    [
        ("deepseek-v3", "prefill", {}),
        ("deepseek-v3", "decode", {"batch": 256}),
        ("llama-3.1-8b", "decode", {"batch": 256, "quant": "W8A8"}),
    ],
)
def test_labels_of_points_are_clear_of_those_of_lower_roofs(model, phase, asked):
    figure = figures.roofline(analyze(model, "h100-sxm", **asked), phase)
    low, high = figure.layout.yaxis.range
    height = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b

    def at(note):
        return (high - note.y) / (high - low) * height

    roofs = [note for note in figure.layout.annotations if note.text.partition(" ")[2].startswith(("matrix", "vector"))]
    assert roofs
    for note in (note for note in figure.layout.annotations if "%" in note.text):
        upper = at(note) + note.ay
        lower = upper + 13 * (1 + note.text.count("<br>"))
        assert all(lower <= at(roof) + 0.01 or at(roof) + 16 <= upper for roof in roofs), note.text


def test_ticks_are_round_and_few():
    for low, high in ((1.5, 400), (0.02, 0.2), (3e-9, 7e9), (0.9, 1.1), (1e-3, 1e-3)):
        found = drawing.ticks(low, high)
        assert len(found) <= 9
        assert all(low <= value <= high for value in found)
    assert drawing.ticks(1.5, 400) == [3, 10, 30, 100, 300]
    assert drawing.ticks(0.02, 0.2) == [0.02, 0.05, 0.1, 0.2]
    assert drawing.ticks(32, 44) == [32, 34, 36, 38, 40, 42, 44]
    assert drawing.ticks(90, 110) == [90, 95, 100, 105, 110]
    assert [drawing.plain(text) for text in ("30.0 ms", "1.50 s", "100 GB", "1.00 k")] == [
        "30 ms",
        "1.50 s",
        "100 GB",
        "1 k",
    ]


def test_other_units_that_work_have_a_thin_roof():
    analysis = analyze("llama-3-8b", "rtx-a6000", quant="W8A8")
    notes = texts(figures.roofline(analysis, "prefill"))
    assert "ridge point 470 OP/B<br>int8 matrix 361 TOP/s" in notes
    assert {"bf16 matrix 181 T", "fp32 vector 45.1 T"} <= set(notes)


def test_the_thin_roof_of_norms_and_additions_is_that_of_vector_units():
    notes = texts(figures.roofline(analyze("llama-3-8b", "h100-sxm"), "prefill"))
    assert "fp32 vector 66.9 T" in notes  # as fast as its fp64 matrix units


def test_a_roof_is_that_of_the_unit_that_works_where_both_have_the_data_type():
    h100 = load_hardware("h100-sxm")
    both = replace(h100, rates={**h100.rates, matrix("fp32"): 163.4e12})
    assert "fp32 vector 66.9 T" in texts(figures.roofline(analyze("llama-3-8b", both), "prefill"))


def test_a_device_without_matrix_units_has_the_roof_of_its_vector_units():
    notes = texts(figures.roofline(analyze("gpt2", "i9-13900k"), "decode"))
    assert "ridge point 27.7 OP/B<br>fp32 vector 2.48 TOP/s" in notes


def test_the_roofs_of_all_data_types_are_figure_5_of_the_paper():
    figure = figures.roofline_dtypes(load_hardware("rtx-a6000"))
    _, *roofs = figure.data
    assert [(roof.name, round(roof.x[0], 1)) for roof in roofs] == [
        ("int4: 619 TOP/s", 806.4),  # 619.3e12 / 768e9
        ("int8: 310 TOP/s", 403.3),
        ("bf16, fp16: 155 TOP/s", 201.6),
        ("tf32: 77.4 TOP/s", 100.8),
        ("vector fp32: 38.7 TOP/s", 50.4),
    ]
    assert texts(figure) == ["806", "403", "202", "101", "50.4"]


def test_the_roofs_of_a_device_without_matrix_units_are_those_of_its_vector_units():
    figure = figures.roofline_dtypes(load_hardware("i9-13900k"))
    names = [trace.name for trace in figure.data[1:]]
    assert names == ["vector int8: 7.73 TOP/s", "vector fp32: 2.48 TOP/s", "vector fp64: 1.24 TOP/s"]


def test_the_time_bars_of_a_phase_are_whole_and_without_gaps(fits):
    figure = figures.time_bars(fits)
    pieces = [
        (row, start, share, trace.name)
        for trace in figure.data
        for row, start, share in zip(trace.y, trace.base, trace.x, strict=True)
    ]
    for row in ("prefill<br>169 ms", "decode<br>18.6 ms"):
        own = sorted((start, share, name) for r, start, share, name in pieces if r == row)
        ends = [start + share for start, share, _ in own]
        assert [start for start, *_ in own] == pytest.approx([0, *ends[:-1]])
        assert ends[-1] == pytest.approx(1)
    compute = sum(share for row, _, share, name in pieces if row.startswith("prefill") and name == "compute-bound")
    assert compute == pytest.approx(fits.phases.prefill.total.time_by_bound_s["compute"] / 0.1688188993531)


def test_bars_of_operators_are_the_longest_first_and_as_long_as_the_phase(fits):
    figure = figures.operator_bars(fits, "prefill")
    total = fits.phases.prefill.total
    expected = [trace for trace in figure.data if trace.name.endswith(", expected")]
    bars = [trace for trace in figure.data if trace not in expected]
    assert {trace.name: sum(trace.x) / 1e3 for trace in bars} == pytest.approx(
        {f"{bound}-bound": time_s for bound, time_s in total.time_by_bound_s.items() if time_s}
    )
    assert sum(sum(trace.x) for trace in expected) / 1e3 == pytest.approx(total.expected_time_s)
    lengths = {row: x for trace in bars for row, x in zip(trace.y, trace.x, strict=True)}
    ranked = [row for row in figure.layout.yaxis.categoryarray[::-1] if not row.startswith("other ")]
    assert [lengths[row] for row in ranked] == sorted((lengths[row] for row in ranked), reverse=True)
    assert "down_proj 19%" in ranked


def test_bars_with_one_bound_are_colored_by_kind_and_as_long_as_bound_and_expected_time():
    found = {name: analyze("deepseek-v3", name, layout="tp=8") for name in ("h200-sxm", "mi300x")}
    figure = figures.phase_bars(found, "decode")
    (scale,) = {1e3} if figure.layout.xaxis.title.text == "time [ms]" else {1e6}
    for name, one in found.items():
        total = one.phases.decode.total
        row = next(row for row in figure.layout.yaxis.categoryarray if row.startswith(f"{name}<br>"))
        upper, lower = (
            [
                (start, x) for trace in figure.data if trace.offset == offset and trace.base is not None
                for y, start, x in zip(trace.y, trace.base, trace.x, strict=True) if y == row
            ]
            for offset in (-0.04, -0.4)
        )  # fmt: skip
        assert sum(x for _, x in upper) / scale == pytest.approx(total.bound_time_s)
        assert sum(x for _, x in lower) / scale == pytest.approx(total.expected_time_s - total.host_s)
    memory_only = figures.phase_bars({"t4": analyze("gpt2", "t4"), "l40s": analyze("gpt2", "l40s")}, "decode")
    legend = [trace.name for trace in memory_only.data if trace.showlegend is not False]
    assert "linear" in legend
    assert not [name for name in legend if name.endswith("-bound")]


def test_operators_with_long_expected_time_are_not_merged_into_other():
    phase = analyze("deepseek-v3", "h200-sxm", layout="tp=8").phases.decode
    found = roofline_points.pieces(phase, "")
    total_s = phase.total.expected_time_s
    small = [one for one in found if one.share < roofline_points.OTHER and one.name != "other"]
    assert small
    assert all(one.expected_s >= roofline_points.OTHER * total_s for one in small)
    listed = {one.name for one in found}
    expected_s = {}
    for op in phase.operators:
        expected_s[op.name, op.bound] = expected_s.get((op.name, op.bound), 0.0) + op.expected_time_s
    assert all(name in listed for (name, _), time_s in expected_s.items() if time_s >= roofline_points.OTHER * total_s)


def test_small_operators_share_a_piece_that_lists_them(fits):
    figure = figures.time_bars(fits)
    hovers = [hover for trace in figure.data for hover in trace.hovertext]
    assert "<b>q_proj</b>: 12.2 ms, 7.2%, compute-bound" in hovers
    (other,) = (hover for hover in hovers if "<b>other</b>" in hover and "lm_head 341 us" in hover)
    assert other.startswith("<b>other</b>: ")
    assert "embed_tokens 43.7 us" in other


def test_the_memory_bar_is_as_long_as_the_memory_where_all_fits(fits):
    figure = figures.memory_bar(fits)
    assert [trace.name for trace in figure.data] == [
        "weights 13.5 GB", "KV cache 1.14 GB", "activations 152 MB", "free 36.8 GB",
    ]  # fmt: skip
    assert sum(trace.x[0] for trace in figure.data) == 49140 * 2**20
    assert figure.layout.title.subtitle.text == "14.8 GB of 51.5 GB: fits, 36.8 GB free"


def test_the_memory_bar_is_hatched_beyond_the_memory_of_the_device(too_large):
    figure = figures.memory_bar(too_large)
    within = sum(trace.x[0] for trace in figure.data if not trace.marker.pattern.shape)
    assert within == too_large.memory.capacity_bytes
    assert sum(trace.x[0] for trace in figure.data) == too_large.memory.total_bytes
    assert {trace.name for trace in figure.data if trace.marker.pattern.shape} == {
        "weights 141 GB", "KV cache 377 MB", "activations 193 MB",
    }  # fmt: skip
    assert "does not fit, 56.2 GB too much" in figure.layout.title.subtitle.text


DRAWN = {
    "roofline": lambda: figures.roofline(analyze("gpt2", "t4"), "prefill"),
    "roofline_dtypes": lambda: figures.roofline_dtypes(load_hardware("t4")),
    "memory_bars": lambda: figures.memory_bars("gpt2", "t4"),
    "decode_time": lambda: figures.decode_time("gpt2", "t4"),
    "prefill_time": lambda: figures.prefill_time("gpt2", "t4"),
    "time_bars": lambda: figures.time_bars(analyze("gpt2", "t4")),
    "memory_bar": lambda: figures.memory_bar(analyze("gpt2", "t4")),
}
AXES = {
    "roofline": ("arithmetic intensity [OP/B]", "performance [OP/s]"),
    "roofline_dtypes": ("arithmetic intensity [OP/B]", "performance [OP/s]"),
    "memory_bars": (None, "memory relative to W16A16"),
    "decode_time": ("batch [sequences]", "time [ms]"),
    "prefill_time": ("prompt [tokens]", "time [ms]"),
    "time_bars": ("share of the phase's time", None),
    "memory_bar": ("memory [B]", None),
}


@pytest.mark.parametrize("name", DRAWN)
def test_figures_have_titles_and_axis_units(name):
    layout = DRAWN[name]().layout
    assert "gpt2" in layout.title.text or "NVIDIA T4" in layout.title.text
    assert (layout.xaxis.title.text, layout.yaxis.title.text) == AXES[name]
    assert layout.template.layout.xaxis.exponentformat == layout.template.layout.yaxis.exponentformat == "SI"


@pytest.mark.parametrize("name", ["roofline", "roofline_dtypes"])
def test_rooflines_have_a_tick_a_decade(name):
    layout = DRAWN[name]().layout
    assert (layout.xaxis.type, layout.yaxis.type, layout.xaxis.dtick) == ("log", "log", 1)
    assert {"1 T", "10 T"} <= set(layout.yaxis.ticktext)


def test_operators_that_move_are_joined_and_ridge_points_are_named():
    analyses = {quant: analyze("llama-3.1-8b", "h100-sxm", quant=quant, batch=8) for quant in ("W16A16", "fp8")}
    figure = figures.rooflines(analyses, "decode")
    joins = next(trace for trace in figure.data if trace.hoverinfo == "skip" and trace.mode == "lines")
    ends = {
        quant: next(
            (point.intensity, point.attainable)
            for point in roofline_points.points(one.phases.decode)
            if any(op.name == "down_proj" for op in point.operators)
        )
        for quant, one in analyses.items()
    }
    assert ends["W16A16"] != ends["fp8"]
    places = list(zip(joins.x, joins.y, strict=True))
    assert ends["W16A16"] in places
    assert places[places.index(ends["W16A16"]) + 1] == ends["fp8"]
    for quant, one in analyses.items():
        main = roofline_points.roofs(one.phases.decode, one.setting.linked)[0]
        (roof,) = (trace for trace in figure.data if trace.name and trace.name.startswith(f"{quant}, ridge point"))
        assert roof.name == f"{quant}, ridge point {number(main.ridge)} OP/B"
        assert roof.x[1] == main.ridge


@pytest.mark.parametrize("name", DRAWN)
def test_figures_leave_no_hover_to_the_default(name):
    for trace in DRAWN[name]().data:
        assert trace.hovertemplate or trace.hoverinfo == "skip" or trace.x == (None,), trace.name


def test_operators_of_one_name_are_one_piece_of_a_bar_whatever_block_they_are_of():
    phase = analyze("deepseek-v2-lite", "h200-sxm").phases.decode
    found = roofline_points.pieces(phase, "decode")
    (piece,) = [one for one in found if one.text.startswith("q_proj")]
    assert len({op.block for op in phase.operators if op.name == "q_proj"}) == 2
    assert piece.share == pytest.approx(sum(op.share for op in phase.operators if op.name == "q_proj"))
    assert sum(piece.share for piece in found) == pytest.approx(1)
    assert [piece.start for piece in found] == pytest.approx(
        [sum(p.share for p in found[:i]) for i in range(len(found))]
    )
    assert max(len(line) for piece in found for line in piece.text.split("<br>")) <= 11


def test_the_name_of_a_point_of_many_operators_is_short():
    operators = analyze("gpt2", "t4").phases.decode.operators
    many = roofline_points.RooflinePoint(
        operators=tuple(replace(op, name=f"{op.name}_of_a_long_name_{i}") for i, op in enumerate(operators))
    )
    assert many.lines == 3
    assert many.label.endswith("\N{HORIZONTAL ELLIPSIS}\N{NO-BREAK SPACE}100%")
