"""File types of llama.cpp against the sizes that it publishes, and GGUF files that are laid out likewise."""

import pytest

from llmviewer import analyze
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.expectation.device import find_device
from llmviewer.ggml import BY_NAME
from llmviewer.model_files import load_model
from llmviewer.transforms.mixtures import MIXTURES
from llmviewer.transforms.quantize import parse_quantization, quantize

# Bits a weight of Llama 3.1 8B: github.com/ggml-org/llama.cpp, tools/quantize/README.md at 311c2c9.
PUBLISHED = {
    "IQ1_S": 2.0042, "IQ1_M": 2.1460, "IQ2_XXS": 2.3824, "IQ2_XS": 2.5882, "IQ2_S": 2.7403, "IQ2_M": 2.9294,
    "IQ3_XXS": 3.2548, "IQ3_XS": 3.4977, "IQ3_S": 3.6606, "IQ3_M": 3.7628, "IQ4_XS": 4.4597, "IQ4_NL": 4.6818,
    "Q2_K_S": 2.9697, "Q2_K": 3.1593, "Q3_K_S": 3.6429, "Q3_K_L": 4.2979, "Q4_K_S": 4.6672, "Q4_K_M": 4.8944,
    "Q5_K_S": 5.5704, "Q5_K_M": 5.7036, "Q6_K": 6.5633, "Q8_0": 8.5008,
}  # fmt: skip
# The same of llama-cpp-sys-2 0.1.7, for file types whose recipes have not changed since.
EARLIER = {
    "llama-2-7b": {"Q3_K_S": 3.50, "Q3_K_M": 3.91, "Q3_K_L": 4.27, "Q4_K_S": 4.58, "Q4_K_M": 4.84, "Q5_K_S": 5.52,
                   "Q5_K_M": 5.68, "Q6_K": 6.56},
    "llama-2-13b": {"Q3_K_S": 3.48, "Q3_K_M": 3.89, "Q3_K_L": 4.26, "Q4_K_S": 4.56, "Q4_K_M": 4.83, "Q5_K_S": 5.51,
                    "Q5_K_M": 5.67, "Q6_K": 6.56},
    "llama-2-70b": {"Q3_K_S": 3.47, "Q3_K_L": 4.19, "Q4_K_M": 4.80, "Q5_K_S": 5.50, "Q5_K_M": 5.65, "Q6_K": 6.56},
}  # fmt: skip


def stored(model, quant):
    """Graph of the model with the formats of that file type."""
    return model.graph.then(quantize(parse_quantization(quant)))


def bits(model, quant):
    graph = stored(model, quant)
    held = [(block.repeat, w) for block, op in graph for w in op.weights if not w.tied]
    return sum(times * w.numel * w.format.stored_bits for times, w in held) / graph.parameters


def formats(model, quant, name):
    """How many layers have the weights of an operator in which format."""
    found = {}
    for block, op in stored(model, quant):
        if op.name == name:
            fmt = str(op.weights[0].format)
            found[fmt] = found.get(fmt, 0) + block.repeat
    return found


@pytest.mark.parametrize(("quant", "published"), PUBLISHED.items())
def test_bits_of_a_weight_are_those_published(quant, published):
    assert bits(load_model("llama-3.1-8b"), quant) == pytest.approx(published, abs=1e-4)


@pytest.mark.parametrize("name", EARLIER)
def test_bits_of_a_weight_are_those_of_an_earlier_table(name):
    model = load_model(name)
    for quant, published in EARLIER[name].items():
        assert bits(model, quant) == pytest.approx(published, abs=0.0051), quant


@pytest.mark.parametrize(
    ("name", "quant", "gib"),
    [
        ("llama-3.1-70b", "Q4_K_M", 39.59), ("qwen2.5-7b", "Q4_K_M", 4.36), ("qwen3-30b-a3b", "Q4_K_M", 17.28),
        ("gpt-oss-20b", "MXFP4_MOE", 11.27),
    ],
)  # fmt: skip
def test_model_size_matches_llama_bench(name, quant, gib):
    """As its users show it: llama 70B, qwen2 7B, qwen3moe 30B.A3B Q4_K - Medium, gpt-oss 20B MXFP4 MoE."""
    model = load_model(name)
    assert bits(model, quant) * model.parameters / 8 / 2**30 == pytest.approx(gib, abs=0.006)


def test_every_type_names_types_of_ggml_for_every_kind_of_model():
    for name in ("llama-3.2-1b", "mixtral-8x7b", "deepseek-v2-lite", "mamba-2.8b", "gpt2", "phi-3-mini", "t5-base"):
        model = load_model(name)
        mixed = any(op.kind == "experts" for _, op in model.graph)
        for quant, mixture in MIXTURES.items():
            usual = BY_NAME[(mixed and mixture.experts) or mixture.base].format.stored_bits
            assert 0.9 * usual < bits(model, quant) < max(1.6 * usual, usual + 2.2), (name, quant)


def test_eight_experts_and_eighty_layers_are_rules_of_their_own():
    mixtral, large = load_model("mixtral-8x7b"), load_model("llama-2-70b")
    assert formats(mixtral, "Q4_K_M", "v_proj") == formats(mixtral, "Q4_K_M", "k_proj") == {"q8_0": 32}
    assert formats(mixtral, "Q4_K_M", "o_proj") == {"q5_k": 32}
    assert formats(mixtral, "Q4_K_M", "expert_down_proj") == {"q6_k": 16, "q4_k": 16}
    assert formats(mixtral, "Q4_K_M", "router") == {"fp32": 32}
    assert formats(large, "Q4_K_M", "v_proj") == {"q6_k": 40, "q5_k": 40}


def test_rows_that_no_block_divides_are_stored_wider():
    model = load_model("gpt-oss-20b")  # rows of 2880 are 90 blocks of 32
    assert formats(model, "Q4_K_M", "expert_gate_proj") == {"q5_0": 24}
    assert formats(model, "Q4_K_M", "lm_head") == {"q8_0": 1}
    assert formats(model, "IQ4_XS", "q_proj") == {"iq4_nl": 24}


def test_a_tied_table_is_held_once_in_the_type_of_the_head():
    model = load_model("llama-3.2-1b")
    assert formats(model, "Q4_K_M", "embed_tokens") == formats(model, "Q4_K_M", "lm_head") == {"q6_k": 1}
    assert [w.tied for _, op in stored(model, "Q4_K_M") if op.name == "lm_head" for w in op.weights] == [True]


def test_layers_are_those_of_the_model_whatever_a_device_has_of_it():
    whole, part = (analyze("llama-3.1-8b", "rtx-4090", quant="Q4_K_M", layout=layout) for layout in ("", "tp=2 pp=2"))
    assert 3.9 * part.memory.weight_bytes < whole.memory.weight_bytes * 1.02
    assert part.memory.weight_bytes > whole.memory.weight_bytes / 4


def test_file_type_accepts_activation_cache_and_per_layer_overrides():
    plain, other = (
        analyze("llama-3.1-8b", "rtx-4090", quant=quant) for quant in ("Q4_K_M", "q4_k_m,A8g32KV8,lm_head=W16A16")
    )
    assert other.inputs["quant"] == "Q4_K_M,A8g32KV8, lm_head=W16A16"
    assert other.memory.kv_cache_bytes == plain.memory.kv_cache_bytes / 2
    more = 128256 * 4096 * (16 - 6.5625) / 8
    assert other.memory.weight_bytes - plain.memory.weight_bytes == pytest.approx(more)
    (up,) = {op.compute_dtype for op in other.phases.prefill.operators if op.name == "up_proj"}
    assert up == "int8"


@pytest.mark.parametrize(
    ("quant", "said"),
    [
        ("Q4_K_M,W8", "quantization Q4_K_M,W8: Q4_K_M already sets the weights; leave out W"),
        ("Q4_K_M,KV8,KV4", "quantization 'KV4': must be OPERATORS=SCHEME, such as down_proj=W8A16 or layers.0-3=W8A8"),
    ],
)
def test_options_contradicting_a_file_type_are_refused(quant, said):
    with pytest.raises(InputError) as error:
        parse_quantization(quant)
    assert str(error.value) == said


def test_a_type_is_not_for_the_accounting_of_the_survey(capsys):
    assert main(["analyze", "llama-2-7b", "rtx-a6000", "--quant", "Q4_K_M", "--accounting", "survey"]) == 2
    said = "accounting survey has one precision for all operators, and Q4_K_M several; try W4A16"
    assert capsys.readouterr().err == f"llmviewer: {said}\n"


def test_advice_keeps_the_type():
    advice = analyze("llama-3.1-8b", "rtx-3090", quant="Q4_K_M", batch=32, prompt=4096).phases.decode.advice
    assert "an 8-bit KV cache (--quant Q4_K_M,KV8)" in advice


def test_a_type_is_expected_as_its_files_are():
    """Formats are those of a GGUF file, of which tests/test_local_engines.py has measurements."""
    total = analyze("llama-3.1-8b", find_device("rtx-4090").name, quant="Q4_K_M,A8g32").phases.decode.total
    assert total.bound_time_s < total.expected_low_s < total.expected_time_s < total.expected_high_s
