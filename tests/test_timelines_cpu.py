"""Timelines of operators: one that torch.profiler records here, of a model of transformers, and hand-made ones."""

import json
from collections import Counter
from copy import deepcopy
from statistics import median

import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.reports.timeline import REPORT
from llmviewer.timelines.against import timeline
from llmviewer.timelines.reading import read_timeline

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LAYERS, BATCH, PROMPT, WRITTEN = 3, 2, 48, 6
CONFIG = {
    "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": LAYERS, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 128,
}  # fmt: skip
ASKED = {"batch": BATCH, "prompt": PROMPT, "quant": "fp32"}
PRODUCTS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PIECES = ("view", "transpose", "slice", "select", "expand", "empty", "squeeze", "item", "nonzero", "lift", "detach")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """(folder of the model's config.json, a trace of it, what the profiler itself makes of that), and an eager one"""
    folder = tmp_path_factory.mktemp("model")
    config = transformers.LlamaConfig(**CONFIG, dtype="float32", architectures=["LlamaForCausalLM"])
    config.save_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    eager = transformers.AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation="eager").eval()
    ids = torch.randint(0, 1000, (BATCH, PROMPT))
    asked = {"min_new_tokens": WRITTEN, "max_new_tokens": WRITTEN, "do_sample": False}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # others need the machine's cores as well
    try:
        model.generate(ids, **asked)
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            model.generate(ids, **asked)
        with torch.profiler.profile(activities=activities, record_shapes=True) as other:
            eager.generate(ids, **asked)
        other.export_chrome_trace(str(folder / "eager.json.gz"))
    finally:
        torch.set_num_threads(threads)
    profiler.export_chrome_trace(str(folder / "trace.json.gz"))
    return folder, folder / "trace.json.gz", profiler


@pytest.fixture(scope="module")
def analysis(run):
    """On a CPU that is faster than any that runs this."""
    return analyze(str(run[0]), "epyc-9755", **ASKED)


@pytest.mark.parametrize(("phase", "passes"), [("prefill", 1), ("decode", WRITTEN - 2)])
def test_cpu_trace_is_analyzed_end_to_end(run, analysis, phase, passes):
    """The last decode step has no known end and is left out."""
    found = timeline(run[1], analysis, phase=phase)
    assert (found.passes.passes, found.passes.others) == (passes, WRITTEN - passes)
    parts = {part.part: part for part in found.parts}
    launches = {name: parts[name].launches for name in parts.keys() - {"elementwise", "data movement"}}
    assert launches == {"matrix products": 7 * LAYERS + 1, "attention": LAYERS, "sampling": 1}
    assert sum(part.measured_s for part in found.parts) + found.idle_s == pytest.approx(found.time_s)
    assert sum(part.bound_s for part in found.parts) == pytest.approx(found.bound_s)
    assert all(part.measured_s > part.bound_s for part in found.parts)
    assert found.passes.rows == (BATCH * PROMPT if phase == "prefill" else BATCH)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_each_matrix_product_is_one_of_the_model(run, analysis, phase):
    found = timeline(run[1], analysis, phase=phase)
    assert [product.operators for product in found.products] == [(name,) for name in (*PRODUCTS, "lm_head")]
    assert [product.launches for product in found.products] == [LAYERS] * 7 + [1]
    assert all(product.measured_s > product.bound_s for product in found.products)
    assert sum(product.measured_s for product in found.products) == pytest.approx(
        next(part.measured_s for part in found.parts if part.part == "matrix products")
    )


@pytest.mark.parametrize(("phase", "passes"), [("prefill", 1), ("decode", WRITTEN - 2)])
def test_eager_attention_is_detected_without_an_option(run, analysis, phase, passes):
    """A layer has two products of heads and a softmax, which stand with the products that do have weights."""
    found = timeline(run[0] / "eager.json.gz", analysis, phase=phase)
    assert (found.passes.passes, found.passes.others) == (passes, WRITTEN - passes)
    parts = {part.part: part for part in found.parts}
    assert (parts["matrix products"].covers, parts["matrix products"].launches) == (("attention",), 10 * LAYERS + 1)
    assert parts["sampling"].launches == 1
    assert [product.operators for product in found.products] == [(name,) for name in (*PRODUCTS, "lm_head")]
    assert [product.launches for product in found.products] == [LAYERS] * 7 + [1]


def test_operator_times_equal_outermost_profiler_times(run):
    """Its tree of calls against ours; left out are operators that move nothing, which are most of the calls."""
    _, path, profiler = run
    outermost = [event for event in profiler.events() if event.cpu_parent is None and "::" in event.name]
    theirs: Counter[str] = Counter()
    for event in outermost:
        theirs[event.name] += event.cpu_time_total
    found, ours = read_timeline(path, "decode"), Counter()
    for name, taken in zip(found.names, found.duration_s, strict=True):
        ours[name] += 1e6 * taken
    assert dict(ours) == pytest.approx({name: taken for name, taken in theirs.items() if name in ours}, rel=1e-2)
    left_out = theirs.keys() - ours.keys()
    assert all(any(piece in name for piece in PIECES) for name in left_out)
    calls = {name: [event.cpu_time_total for event in outermost if event.name == name] for name in theirs}
    usual = {name: len(taken) * median(taken) for name, taken in calls.items()}  # any call may be interrupted
    assert sum(usual[name] for name in left_out) < 0.2 * sum(usual.values())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"batch": 4}, ["Most matrix products have 96 rows; the analyzed pass has 192 tokens."]),
        ({"quant": "bf16"}, ["Matrix products are in fp32; analyzed: bf16 (--quant)."]),
    ],
)
def test_report_notes_differences_between_request_and_recording(run, changed, said):
    found = timeline(run[1], analyze(str(run[0]), "epyc-9755", **(ASKED | changed)), phase="prefill")
    text = " ".join(REPORT.text(found).split())
    assert [line for line in said if line in text] == said
    assert ("matrix products have" in text or "products are in" in text) == bool(said)


@pytest.mark.parametrize(("field", "told"), [("intermediate_size", False), ("vocab_size", True)])
def test_weights_of_other_sizes_are_another_models(run, field, told):
    (run[0] / "other").mkdir(exist_ok=True)
    config = json.loads((run[0] / "config.json").read_text()) | {field: 704}
    (run[0] / "other" / "config.json").write_text(json.dumps(config))
    found = timeline(run[1], analyze(str(run[0] / "other"), "epyc-9755", **ASKED))
    named = [name for product in found.products for name in product.operators]
    assert named == ([*PRODUCTS] if told else [])
    said = " ".join(REPORT.text(found).split())
    assert ("another model was recorded" in said) == told


def test_reports_name_operators_and_threads(run, capsys):
    command = ["timeline", str(run[1]), str(run[0]), "epyc-9755", "--batch", "2", "--prompt", "48", "--quant", "fp32"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "Operators of a pass" in text
    assert "aten::linear" in text
    assert max(map(len, text.splitlines())) <= 80
    assert main([*command[:3], "h100-sxm", *command[4:]]) == 2
    said = capsys.readouterr().err
    assert (
        "has operators of a CPU, and no kernel of a GPU; hardware must be the device they ran on; got h100-sxm" in said
    )


# Hand-made ones: [us]


def op(name, start, duration, thread=1, shapes=None):
    args = {"Input Dims": shapes, "Input type": ["float"] * len(shapes)} if shapes else {}
    return {"cat": "cpu_op", "name": name, "pid": 9, "tid": thread, "ts": start, "dur": duration, "args": args}


def written(path, events):
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_nested_operators_count_once_and_only_one_thread_does(tmp_path):
    """A product that calls two others, an operator inside of a range that is no operator, a view and a busy helper."""
    found = read_timeline(written(tmp_path / "t.json", [
        op("aten::mm", 12, 70), op("aten::linear", 10, 80, shapes=[[2, 3, 64], [32, 64], []]), op("aten::t", 10, 1),
        op("ProfilerStep#1", 0, 500), op("Torch-Compiled Region: 0/0", 90, 60), op("aten::add", 100, 5),
        op("aten::view", 120, 4), op("aten::transpose", 125, 1), op("aten::relu", 200, 7, thread=2),
    ]), "decode")  # fmt: skip
    assert (found.names, found.devices, found.host) == (("aten::linear", "aten::add"), 2, True)
    assert 1e6 * found.duration_s == pytest.approx([80, 5])
    assert found.operands[0][:2] == (6, 32 * 64)


def test_time_between_operators_belongs_to_the_compiled_graph(tmp_path):
    """A graph of 100 us with a product of 40 and an attention of 20 in it: loops take the other 40."""
    name = "## Call CompiledFxGraph fab ##"
    graph = {"cat": "user_annotation", "name": name, "pid": 9, "tid": 1, "ts": 10, "dur": 100}
    found = read_timeline(written(tmp_path / "t.json", [
        graph, op("aten::mm", 15, 40), op("aten::scaled_dot_product_attention", 55, 20), op("aten::sum", 300, 3),
    ]), "decode")  # fmt: skip
    loops = "loops of a CompiledFxGraph"
    assert found.names == (loops, "aten::mm", "aten::scaled_dot_product_attention", loops, "aten::sum")
    assert 1e6 * found.duration_s == pytest.approx([5, 40, 20, 35, 3])


@pytest.mark.parametrize("named", [False, True])
def test_passes_without_shapes_have_to_be_named(tmp_path, analysis, named):
    """Three steps of three layers."""
    events = [
        op(f"aten::{name}", 1000 * step + 30 * layer + 10 * place, 5)
        for step in range(3) for layer in range(LAYERS)
        for place, name in enumerate(("linear", "scaled_dot_product_attention"))
    ]  # fmt: skip
    name = {"cat": "user_annotation", "name": "execute_context_0(0)_generation_2(2)", "pid": 9, "tid": 1, "dur": 500}
    path = written(tmp_path / "t.json", events + [{**name, "ts": 1000 * step - 1} for step in range(3)] * named)
    if named:
        assert timeline(path, analysis).passes.passes == 1
    else:
        with pytest.raises(InputError, match=r"t\.json: prefill and decode passes look alike"):
            timeline(path, analysis)


def laid(passes, each=200):
    """Operators 10 us after another, in passes that begin so far apart. [us]"""
    return [
        op(f"aten::{name}", each * i + 10 * place, 5, shapes=[[2, 64], [64, 64]])
        for i, names in enumerate(passes) for place, name in enumerate(names)
    ]  # fmt: skip


STEP = ("embedding", "embedding", "linear", "softmax", "linear", "softmax", "linear", "argmax")


@pytest.mark.parametrize("passes", [None, 4])
def test_a_pass_begins_with_the_embeddings(tmp_path, analysis, passes):
    """A pass begins at the embeddings, not after a longer pause; operators before the first are part of it."""
    path = written(tmp_path / "t.json", [op("aten::arange", -50, 5), *laid([STEP] * 4)])
    found = timeline(path, analysis, passes=passes)
    assert found.passes.each_s == pytest.approx([200e-6] * 2)
    assert {part.part: part.covers for part in found.parts if part.covers} == {"matrix products": ("attention",)}
    assert {part.part: part.launches for part in found.parts if part.launches} == {
        "matrix products": 5, "elementwise": 2, "sampling": 1
    }  # fmt: skip
    with pytest.raises(InputError, match=r"t\.json: passes must divide the 4 recorded launches"):
        timeline(path, analysis, passes=3)


def test_layers_that_no_operator_is_named_after_do_not_shift_passes(tmp_path, analysis):
    """One of the three layers that mix tokens has attention by name: three of it are three passes, not one."""
    step = ("embedding", "linear", "scaled_dot_product_attention", "linear", "argmax")
    found = timeline(written(tmp_path / "t.json", laid([step] * 6)), analysis)
    assert (found.passes.passes, found.mixing) == (4, 1)


def test_an_embedding_within_a_pass_begins_none(tmp_path, analysis):
    """As a bias by position, after a product: where attention tells passes otherwise, it is believed."""
    step = ("embedding", "linear", "embedding", *("scaled_dot_product_attention", "linear") * LAYERS, "argmax")
    found = timeline(written(tmp_path / "t.json", laid([step] * 4)), analysis)
    assert (found.passes.passes, found.mixing) == (2, 3)
