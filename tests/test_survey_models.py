"""Models that surveys of LLM inference name, by the numbers that they and the papers of the models give."""

import pytest

from llmviewer import analyze, load_model
from llmviewer.forms import evaluate
from llmviewer.memory import weight_bytes
from llmviewer.model import kv_cache_bytes
from llmviewer.setting import Setting
from llmviewer.workload import Workload

# Parameters as the papers of the models round them, in billions.
PUBLISHED = [
    ("palm-8b", 8.63), ("palm-62b", 62.50), ("palm-540b", 540.35), ("opt-175b", 175), ("gpt-3-175b", 175),
    ("glam-1.2t", 1162), ("mobilellm-350m", 0.3453), ("mobilellm-600m", 0.6031), ("mobilellm-1b", 1.01),
    ("mobilellm-1.5b", 1.51), ("longchat-7b-16k", 6.74), ("chatglm-6b", 6.17),
]  # fmt: skip


@pytest.mark.parametrize(("name", "billions"), PUBLISHED)
def test_parameters_round_to_what_is_published(name, billions):
    assert load_model(name).parameters / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize(("name", "active", "total"), [("blackmamba-1.5b", 340, 1.5), ("blackmamba-2.8b", 630, 2.8)])
def test_sizes_of_blackmamba_are_those_that_name_it(name, active, total):
    """github.com/Zyphra/BlackMamba: parameters of a forward pass in millions, and in total in billions."""
    found = load_model(name)
    assert (round(found.active_parameters / 1e6, -1), round(found.parameters / 1e9, 1)) == (active, total)


def test_gpt_3_takes_350_gb_in_fp16():
    """Claim Q-S4-02: 175 billion parameters in 16 bits."""
    assert weight_bytes(load_model("gpt-3-175b").published) == pytest.approx(350e9, rel=0.0025)


def test_glam_activates_96_billion_and_half_of_the_operations_of_gpt_3():
    """arXiv:2112.06905, table 4: 96.6 billion active; abstract: half of the computation of GPT-3 for inference."""
    assert load_model("glam-1.2t").active_parameters / 1e9 == pytest.approx(96.6, abs=0.05)
    step = Workload.decode(batch=1, kv_len=1)
    ops = {name: evaluate(Setting.of(name, "h100-sxm").decode_plan.ops, step) for name in ("glam-1.2t", "gpt-3-175b")}
    assert ops["glam-1.2t"] / ops["gpt-3-175b"] == pytest.approx(0.5, abs=0.06)


def test_one_key_value_head_of_palm_caches_a_48th():
    """arXiv:2204.02311, section 2: queries of 48 heads share one key and one value of 256 elements."""
    assert kv_cache_bytes(load_model("palm-540b").graph, batch=1, context=1) == 118 * 2 * 256 * 2


def test_prompts_of_chatglm_attend_in_both_directions():
    """Twice the pairs of a causal prompt, less the diagonal; steps are those of any decoder."""
    found = {name: Setting.of(name, "h100-sxm") for name in ("chatglm-6b", "chatglm3-6b")}
    prompt, step = Workload.prefill(batch=1, prompt=1000), Workload.decode(batch=1, kv_len=1000)

    def pairs(setting, workload):
        op = next(op for _, op in setting.graph if op.name == "attention")
        return evaluate(op.heads.mask.pairs, workload)

    assert pairs(found["chatglm-6b"], prompt) == 1000**2
    assert pairs(found["chatglm3-6b"], prompt) == 1000 * 1001 / 2
    assert pairs(found["chatglm-6b"], step) == pairs(found["chatglm3-6b"], step) == 1000


def test_thin_models_of_phones_fit_a_phone():
    """arXiv:2402.14905, introduction: an app of a phone has about a tenth of its memory, which 8 bits of 350M leave."""
    found = analyze("mobilellm-350m", "a18-pro", quant="W8A16", gen=16)
    assert found.memory.total_bytes < 0.1 * 8e9


def test_the_source_of_a_model_without_repository_is_its_paper():
    assert load_model("gpt-3").source == "arXiv:2005.14165, table 2.1"
