"""Whole layers and decode steps in Triton's interpreter: results, and counts compared with the engine."""

import json
from math import inf

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.runtime import interpreter  # noqa: E402

from llmviewer.errors import InputError  # noqa: E402
from llmviewer.forms import evaluate, total  # noqa: E402
from llmviewer.kernels import load_kernel  # noqa: E402
from llmviewer.kernels.base import Target, case  # noqa: E402
from llmviewer.kernels.decoder import decode_step  # noqa: E402
from llmviewer.model_files import load_model  # noqa: E402
from llmviewer.transforms.flash_attention import flash_attention  # noqa: E402
from llmviewer.workload import Workload  # noqa: E402

from .cases import first_fast  # noqa: E402
from .kernel_checks import cases, converted  # noqa: E402

H100 = Target(sm=90, multiprocessors=132)
CASES = cases("rope_cache", "layer")
SIZES = {
    "vocab_size": 83, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "rope_theta": 10000.0, "attention_bias": False,
}  # fmt: skip
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
TINY = {
    "llama": SIZES | {"intermediate_size": 64, "tie_word_embeddings": False},
    "qwen3": SIZES | {"intermediate_size": 64, "tie_word_embeddings": True},
    "qwen3_moe": SIZES | EXPERTS | {"intermediate_size": 64, "tie_word_embeddings": False, "mlp_only_layers": []},
}


def model_file(folder, model_type):
    path = folder / "config.json"
    path.write_text(json.dumps(TINY[model_type] | {"model_type": model_type, "dtype": "float16"}))
    return str(path)


def published(model_type, step):
    """The model of transformers with the weights of a step, in fp32."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(model_type, **TINY[model_type])
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    names = {
        "model.embed_tokens.weight": "embed_tokens", "model.norm.weight": "final_norm", "lm_head.weight": "lm_head",
    }  # fmt: skip
    state = {theirs: step.weights[ours].float() for theirs, ours in names.items()}
    for layer in range(SIZES["num_hidden_layers"]):
        own = {name: step.weights.get(f"{layer}.{name}") for name in _NAMES}
        q, k, v = own["qkv"].float().split((64, 32, 32))
        at = f"model.layers.{layer}"
        state |= {f"{at}.self_attn.{name}_proj.weight": w for name, w in zip("qkv", (q, k, v), strict=True)}
        state |= {
            f"{at}.{theirs}.weight": own[ours] for ours, theirs in _NAMES.items() if theirs and own[ours] is not None
        }
        if own["router"] is not None:
            state |= {f"{at}.mlp.experts.gate_up_proj": own["gate_up"], f"{at}.mlp.experts.down_proj": own["down"]}
        else:
            gate, up = own["gate_up"].chunk(2)
            named_weights = {"gate": gate, "up": up, "down": own["down"]}
            state |= {f"{at}.mlp.{name}_proj.weight": w for name, w in named_weights.items()}
    model.load_state_dict({name: weight.float() for name, weight in state.items()})
    return model


_NAMES = {
    "attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm", "o": "self_attn.o_proj", "router": "mlp.gate", "qkv": "", "gate_up": "", "down": "",
}  # fmt: skip


@pytest.mark.parametrize("model_type", first_fast(TINY, "in Triton's interpreter"))
def test_steps_give_the_tokens_of_transformers(model_type, tmp_path, monkeypatch):
    """Greedy answers of 4 tokens from an empty cache, and the logits on the way, in fp16 beside fp32."""
    monkeypatch.setattr(interpreter, "_convert_float", converted)
    step = decode_step(model_file(tmp_path, model_type), batch=2, kv_len=1, room=3, device="cpu", seed=5)
    model = published(model_type, step)
    ids, found = [step.ids.clone()], []
    for _ in range(4):
        tokens, logits = step()
        found.append(logits.float().clone())
        assert torch.equal(tokens.long(), logits.argmax(1))
        step.advance()
        ids.append(tokens.clone())
    with torch.no_grad():
        wanted = model(torch.stack(ids[:4], dim=1).long()).logits
    torch.testing.assert_close(torch.stack(found, dim=1), wanted, rtol=0.02, atol=0.02)


@pytest.mark.slow("in Triton's interpreter")
def test_a_step_repeats_bit_by_bit_and_allocates_nothing(tmp_path):
    step = decode_step(model_file(tmp_path, "llama"), batch=1, kv_len=9, layers=1, device="cpu")
    first = [t.clone() for t in step()]
    again = step()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert [t.data_ptr() for t in again] == [t.data_ptr() for t in step()]
    with pytest.raises(InputError, match=r"^a CUDA graph needs a step on a GPU; this one is on cpu$"):
        step.capture()


BATCH, CONTEXT = 16, 4096


def engine(name):
    """(OPs, bytes) of a decode step as the engine counts it, its sizes and its layers."""
    model = load_model(name)
    workload = Workload.decode(batch=BATCH, kv_len=CONTEXT)
    works = [(block.repeat, op.work()) for block, op in model.graph.then(flash_attention(inf))]
    ops = evaluate(total(repeat * work.ops for repeat, work in works), workload)
    nbytes = evaluate(total(repeat * work.nbytes for repeat, work in works), workload)
    widths = {op.name: op.outputs[0].width for _, op in model.graph if op.outputs}
    return ops, nbytes, widths, model.graph.layers


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "qwen3-8b", "mistral-7b-v0.1", "mixtral-8x7b", "qwen3-30b-a3b", "llama-3.2-1b"]
)
def test_decode_step_counts_equal_the_engine_except_for_fusion(name):
    """OPs are the same, and a comparison of each logit. Of bytes, in 16 bits for each token:

    an addition's sum stays on the chip for the norm after it, twice a layer; one product reads its input once, not
    thrice (queries, keys, values) or twice (gate, up); values go by way of the joint product's result; norms of heads
    stay on the chip; experts take no copies of tokens, and their gates and ups stay on the chip. The argmax reads the
    logits and writes 4 bytes.
    """
    step = decode_step(name, batch=BATCH, kv_len=CONTEXT, device="meta", target=H100)
    ops, nbytes, widths, layers = engine(name)
    hidden, vocab = widths["attn_norm"], widths["lm_head"]
    saved = (2 + 2) * hidden - 2 * widths["v_proj"]
    if "q_norm" in widths:
        saved += 2 * (widths["q_norm"] + widths["k_norm"])
    if "router" in widths:
        chosen = widths["route"]
        saved += chosen * (3 * hidden + 4 * widths["expert_act"])
    else:
        saved += hidden
    assert step.ops == pytest.approx(ops + BATCH * vocab, rel=1e-12)
    assert step.nbytes == pytest.approx(nbytes + BATCH * (2 * vocab + 4 - 2 * layers * saved), rel=1e-12)
    assert abs(step.nbytes / nbytes - 1) < 0.005


@pytest.mark.slow("in Triton's interpreter")
@pytest.mark.parametrize("tile", load_kernel("rope_cache").tilings(None, None), ids=str)
def test_heads_of_a_program_do_not_change_what_is_rotated(tile):
    one = case("fp16", B=2, heads=20, kv_heads=5, dim=32, kv=40, page=16, norm=1)
    kernel = load_kernel("rope_cache")
    inputs = kernel.make(one, "cpu", 0)
    copied = {name: value.clone() if hasattr(value, "clone") else value for name, value in inputs.items()}
    for ours, theirs in zip(kernel.run(**inputs), kernel.run(**copied, tile=tile), strict=True):
        assert torch.equal(ours, theirs)


def test_layer_has_the_minimal_number_of_launches():
    def functions(name, batch, **more):
        step = decode_step(name, batch=batch, kv_len=4096, layers=1, device="meta", target=H100, **more)
        return [launch.function.fn.__name__ for launch in step.plan.launches]

    mixer = ["_norm", "_tiled", "_rope_cache", "_decode", "_tiled", "_norm"]
    end = ["_norm", "_tiled", "_best"]
    dense = ["_tiled", "_activate", "_tiled"]
    assert functions("llama-3.1-8b", 64) == ["_embedding", *mixer, *dense, *end]
    experts = ["_tiled", "_route", "_place_few", "_grouped", "_grouped", "_combine"]
    assert functions("mixtral-8x7b", 64) == ["_embedding", *mixer, *experts, *end]
    # One sequence: products of one row, and its keys in parts, which the last program to be done puts together.
    alone = functions("llama-3.1-8b", 1)
    assert [alone.count(name) for name in ("_gemv", "_decode", "_merge", "_tiled")] == [5, 1, 0, 0]


@pytest.mark.parametrize(
    ("name", "differs"),
    [
        ("qwen2.5-0.5b", "k_proj.bias, q_proj.bias, v_proj.bias"),
        ("olmo-2-7b", "attn_norm, k_norm, mlp_norm, q_norm"),
        ("gemma-2-9b", "attn_post_norm, mlp_act, mlp_post_norm"),
        ("gpt-j-6b", ""),
    ],
)
def test_a_model_that_kernels_cannot_step_is_refused(name, differs):
    with pytest.raises(InputError, match=rf"^a decode step of kernels supports .*{differs}") as error:
        decode_step(name, batch=1, kv_len=8, device="meta")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"batch": 0}, "batch must be at least 1; got 0"),
        ({"layers": 0}, "layers must be from 1 to the 32 of llama-3.1-8b; got 0"),
        ({"layers": 33}, "layers must be from 1 to the 32 of llama-3.1-8b; got 33"),
        ({"room": -1}, "room must be at least 0; got -1"),
    ],
)
def test_invalid_decoder_sizes_are_refused(sizes, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        decode_step("llama-3.1-8b", **{"batch": 1, "kv_len": 8, "device": "meta"} | sizes)
