"""OPs and parameters against torch's flop counter on Hugging Face models (oracle/flops.json, made by make_flops.py).

Two conventions differ. The counter takes attention over all query-key cells, where a causal mask leaves pairs: the two
are the same for one query, and in a prefill our products are scaled by cells / pairs, where there is a window too. It
runs the head at every position of a prefill, where one position of each sequence is wanted: our head is scaled by
tokens / logits. Experts are counted by the rows that are routed to them, which is what we count.
"""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest

from llmviewer._layout import data_dir
from llmviewer.documents import read_yaml
from llmviewer.forms import evaluate
from llmviewer.model_files import load_model, model_names
from llmviewer.operators.attention import QK, SV
from llmviewer.operators.linear import ExpertsLinear, Linear
from llmviewer.operators.masks import CAUSAL
from llmviewer.workload import Workload

from .cases import for_each

ORACLE = Path(__file__).parent / "oracle"
MODELS = json.loads((ORACLE / "flops.json").read_text(encoding="utf-8"))["models"]
CASES = [(name, case) for name, model in MODELS.items() for case in model["cases"]]
DECODE_STEPS = [(name, case) for name, case in CASES if case["phase"] == "decode"]
OPERATOR = {  # last part of a module's path in transformers -> name of the operator
    "q_proj": "q_proj",
    "k_proj": "k_proj",
    "v_proj": "v_proj",
    "c_attn": "qkv_proj",
    "query_key_value": "qkv_proj",
    "qkv_proj": "qkv_proj",
    "Wqkv": "qkv_proj",
    "o_proj": "o_proj",
    "out_proj": "o_proj",
    "dense": "o_proj",
    "attn.c_proj": "o_proj",
    "gate_proj": "gate_proj",
    "gate_up_proj": "gate_up_proj",
    "up_proj": "up_proj",
    "fc1": "up_proj",
    "fc_in": "up_proj",
    "c_fc": "up_proj",
    "dense_h_to_4h": "up_proj",
    "down_proj": "down_proj",
    "fc2": "down_proj",
    "fc_out": "down_proj",
    "mlp.c_proj": "down_proj",
    "dense_4h_to_h": "down_proj",
    "project_in": "project_in",
    "project_out": "project_out",
    "lm_head": "lm_head",
    "gate": "router",
    "router": "router",
    "wg": "router",
    "experts": "experts",
    "shared_expert_gate": "shared_gate",
    "q_a_proj": "q_a_proj",
    "q_b_proj": "q_b_proj",
    "kv_a_proj_with_mqa": "kv_a_proj",
    "kv_b_proj": "kv_b_proj",
}
SHARED = ("shared_expert", "shared_experts", "shared_mlp")  # modules: MLPs that all tokens take beside experts
ATTENTION = ("self_attn", "attn", "self_attention", "attention")


def _workload(case):
    past = case["kv_len"] - case["q_len"]
    return Workload.chunk(batch=case["batch"], chunk=case["q_len"], past=past)


def _operator(path):
    last = path.split(".")[-1]
    if any(part in SHARED for part in path.split(".")):
        return f"shared_{last}"
    return "attention" if last in ATTENTION else OPERATOR.get(last) or OPERATOR[".".join(path.split(".")[-2:])]


def _counted_by_torch(case):
    """OPs by operator, those of one layer after the other together."""
    return {_operator(path): ops for path, ops in case["by_module"].items()}


def _whole(w, mask):
    """Cells that torch counts for each pair that a mask leaves: all keys in a prefill, those kept in a decode step."""
    cells = evaluate(CAUSAL.cells if w.tokens() > w.sequences() else mask.cells, w)
    return Fraction(int(cells), int(evaluate(mask.pairs, w)))


def _counted_by_us(name, w):
    """OPs by operator in the counter's conventions, those of all kinds of layer together."""
    everywhere = Fraction(int(w.tokens()), int(w.logits()))
    counted = Counter({"attention": Fraction(0)})
    for block, op in load_model(name).graph:
        ops = block.repeat * Fraction(evaluate(op.work().ops, w))
        if isinstance(op, QK | SV):
            counted["attention"] += ops * _whole(w, op.heads.mask)
        elif isinstance(op, ExpertsLinear):
            counted["experts"] += ops
        elif isinstance(op, Linear):
            counted[op.name] += ops * (everywhere if op.name == "lm_head" else 1)
    return counted


@for_each("name, case", CASES)
def test_ops_of_every_matrix_product_equal_torchs_to_the_digit(name, case):
    ours = _counted_by_us(name, _workload(case))
    assert ours == _counted_by_torch(case)
    assert sum(ours.values()) == case["flops"]


@for_each("name, case", DECODE_STEPS)
def test_attention_of_a_decode_step_needs_no_change_of_convention(name, case):
    w = _workload(case)
    products = [(b.repeat, op) for b, op in load_model(name).graph if isinstance(op, QK | SV)]
    assert sum(n * evaluate(op.work().ops, w) for n, op in products) == _counted_by_torch(case)["attention"]


@for_each("name", MODELS)
def test_parameters_equal_those_of_transformers(name):
    assert load_model(name).parameters == MODELS[name]["parameters"]


@for_each("name", model_names)
def test_parameters_equal_the_count_in_the_models_file(name):
    assert load_model(name).graph.parameters == read_yaml(data_dir("models") / f"{name}.yaml").integer("parameters")


@for_each("name", MODELS)
def test_the_cache_holds_as_many_elements_a_token_as_that_of_transformers(name):
    model = load_model(name)
    repeated = 16 if name == "falcon-40b" else 1  # transformers caches its 8 KV heads as 128
    assert repeated * model.kv_bytes_per_token / (model.format.bits / 8) == MODELS[name]["cache_elements"]


@pytest.mark.slow("counts in torch again")
def test_flops_json_equals_a_torch_recount(recounted):
    """A small model of each kind is recounted: versions are pinned. Needs the extra `oracle`; skipped without it."""
    dense, experts = ("gpt2", "llama-3.2-1b", "bloom-560m"), ("gpt-oss-20b", "deepseek-v2-lite")
    recounted("make_flops.py", *dense, *experts, "lfm2-1.2b")
