"""Commands that start servers: every option is documented, values parse, and the command is that of the setting."""

import json
import shlex

import pytest
import yaml

from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.expectation.engines import engine_names
from llmviewer.serving.launch_commands import (
    FORMS,
    deployed_techniques,
    launch_command,
    parse_emit,
    server_engines,
    server_program,
)  # fmt: skip
from llmviewer.setting import Setting
from llmviewer.techniques import techniques

from .cases import for_each

# Options in the engines' sources: the wheels of sglang 0.5.5 and 0.5.23 (server_args.py, arg_groups/fields/), vLLM
# (engine/arg_utils.py), TensorRT-LLM (commands/serve.py, llmapi references), llama.cpp (tools/server/README.md) and
# mlx_lm 0.32.2 (server.py), read in November 2026.
DOCUMENTED = {
    "vllm": "--tensor-parallel-size --pipeline-parallel-size --data-parallel-size --decode-context-parallel-size "
    "--enable-expert-parallel --moe-backend --enable-dbo --quantization --kv-cache-dtype --max-model-len "
    "--max-num-seqs --max-num-batched-tokens --gpu-memory-utilization --enable-prefix-caching --speculative-config "
    "--block-size --enable-chunked-prefill --cpu-offload-gb --enable-eplb --async-scheduling --enforce-eager "
    "--dtype --seed",
    "sglang": "--model-path --tp-size --pp-size --dp-size --enable-dp-attention --ep-size --ep-num-redundant-experts "
    "--enable-eplb --moe-runner-backend --enable-two-batch-overlap --quantization --kv-cache-dtype --context-length "
    "--max-running-requests --chunked-prefill-size --mem-fraction-static --speculative-algorithm "
    "--speculative-draft-model-path --speculative-num-steps --speculative-eagle-topk --speculative-num-draft-tokens "
    "--page-size --disable-radix-cache",
    "tensorrt-llm": "--tp_size --pp_size --cp_size --ep_size --max_batch_size --max_num_tokens --max_seq_len "
    "--kv_cache_free_gpu_memory_fraction --enable_chunked_prefill --extra_llm_api_options --config "
    "enable_attention_dp kv_cache_config.dtype speculative_config.decoding_type speculative_config.max_draft_len "
    "speculative_config.num_nextn_predict_layers speculative_config.speculative_model "
    "speculative_config.max_matching_ngram_size",
    "llama.cpp": "--hf-repo -hf --n-gpu-layers --split-mode --tensor-split --ctx-size --parallel --batch-size "
    "--ubatch-size --cache-type-k --cache-type-v --spec-type --spec-draft-hf --spec-draft-n-max "
    "--spec-ngram-simple-size-m --n-cpu-moe --flash-attn",
    "mlx": "--model --draft-model --num-draft-tokens --decode-concurrency --prompt-concurrency --prefill-step-size "
    "--prompt-cache-size --kv-bits --kv-group-size --quantized-kv-start --pipeline --host --port",
}
SETTINGS = {
    "vllm": [
        ("qwen3-32b", "h100-sxm", {"quant": "fp8KV8", "tp": 2, "techniques": ["eagle", "prefix-cache"]}),
        ("llama-3.1-8b", "h100-sxm", {"techniques": ["retrieval"], "pp": 1, "quant": "W4A16g128"}),
        ("llama-3.1-70b", "h100-sxm", {"tp": 4, "techniques": ["speculative:draft=llama-3.2-1b,tau=2"]}),
        ("deepseek-v3", "h200-sxm", {"dp": 8, "ep": 8, "techniques": ["mtp"], "two_batch_overlap": True}),
    ],
    "sglang": [
        ("deepseek-v3", "h200-sxm", {"dp": 8, "ep": 8, "redundant_experts": 32, "techniques": ["mtp:gamma=2"]}),
        ("qwen3-32b", "h100-sxm", {"quant": "fp8KV8", "tp": 2, "techniques": ["eagle:gamma=5,nodes=8,tau=3"]}),
        ("llama-3.1-8b", "h100-sxm", {"techniques": ["speculative:draft=llama-3.2-1b,tau=2"]}),
        ("llama-3.1-8b", "h100-sxm", {"techniques": ["retrieval"]}),
    ],
    "tensorrt-llm": [
        ("deepseek-v3", "b200", {"dp": 8, "ep": 8, "techniques": ["mtp"], "quant": "KV8"}),
        ("llama-3.1-8b", "h100-sxm", {"techniques": ["eagle"], "pp": 1}),
        ("llama-3.1-8b", "h100-sxm", {"techniques": ["retrieval"]}),
        ("llama-3.1-70b", "h100-sxm", {"tp": 4, "techniques": ["speculative:draft=llama-3.2-1b,tau=2"]}),
    ],
    "llama.cpp": [
        ("qwen3-32b", "rtx-4090", {"quant": "Q4_K_M,KVq8_0"}),
        ("qwen3-8b", "rtx-4090", {"quant": "Q4_K_M", "techniques": ["eagle"]}),
        ("qwen3-8b", "rtx-4090", {"quant": "Q8_0", "techniques": ["retrieval"]}),
    ],
    "mlx": [("qwen3-8b", "m4-max", {"quant": "W4A16g64"})],
}  # fmt: skip


@pytest.mark.parametrize("engine", server_engines())
def test_every_option_is_documented(engine):
    server, documented = server_program(engine), set(DOCUMENTED[engine].split())
    assert engine in engine_names()
    assert server.flags.keys() <= documented
    assert all(name in server.flags for options in server.techniques.values() for name in options)
    assert server.techniques.keys() <= techniques().keys()
    assert server.sources
    assert all(source.startswith("https://") for source in server.sources)
    for flag in server.flags.values():
        assert flag.reason
        assert all(flag.accepts(value) for value in flag.values.values())


@for_each(
    "engine, model, device, options", [(engine, *one) for engine, settings in SETTINGS.items() for one in settings]
)
def test_option_values_are_accepted_by_the_engine_parser(engine, model, device, options):
    command = launch_command(Setting.of(model, device, **options), sequences=16, tokens=4096, engine=engine)
    for option in command.options:
        assert command.server.flags[option.name].accepts(option.value), option
    names = [option.name for option in command.options]
    assert len(names) == len(set(names))
    for name in options.get("techniques", ()):
        assert not [part for part in command.unsupported if name in part]
    written = command.written("shell")
    assert shlex.split(written.partition(command.program[0])[2], comments=True)
    if command.config:
        assert yaml.safe_load(command.config)


def given(engine, model, device, sequences=32, tokens=5120, **options):
    command = launch_command(Setting.of(model, device, **options), sequences=sequences, tokens=tokens, engine=engine)
    return {option.name: option.value for option in command.options}, command


def test_a_command_of_vllm():
    options, command = given(
        "vllm", "qwen3-32b", "h100-sxm", quant="fp8KV8", tp=2, techniques=["eagle", "prefix-cache"]
    )
    speculation = json.loads(options.pop("--speculative-config"))
    assert speculation == {"method": "eagle3", "model": "EAGLE_HEAD", "num_speculative_tokens": 3}
    assert options == {
        "--tensor-parallel-size": "2", "--quantization": "fp8", "--kv-cache-dtype": "fp8", "--max-model-len": "5120",
        "--max-num-seqs": "32", "--max-num-batched-tokens": "8192", "--enable-prefix-caching": "",
        "--gpu-memory-utilization": options["--gpu-memory-utilization"],
    }  # fmt: skip
    assert command.program == ("vllm", "serve", "Qwen/Qwen3-32B")
    assert "EAGLE_HEAD" in command.placeholders
    assert command.unsupported == ()


def test_ranks_of_attention_are_counted_as_each_engine_does():
    layout = {"dp": 8, "ep": 8}
    vllm, _ = given("vllm", "deepseek-v3", "h200-sxm", sequences=64, **layout)
    assert (vllm["--data-parallel-size"], vllm["--max-num-seqs"]) == ("8", "8")
    assert "--tensor-parallel-size" not in vllm
    sglang, _ = given("sglang", "deepseek-v3", "h200-sxm", sequences=64, **layout)
    assert (sglang["--tp-size"], sglang["--dp-size"], sglang["--max-running-requests"]) == ("8", "8", "64")
    trtllm, command = given("tensorrt-llm", "deepseek-v3", "h200-sxm", sequences=64, **layout)
    assert (trtllm["--tp_size"], trtllm["--ep_size"], trtllm["--max_batch_size"]) == ("8", "8", "8")
    assert yaml.safe_load(command.config) == {"enable_attention_dp": True}


def test_slots_of_llama_cpp_share_the_context():
    options, command = given("llama.cpp", "qwen3-8b", "rtx-4090", sequences=4, tokens=8192, quant="Q4_K_M")
    assert (options["--ctx-size"], options["--parallel"]) == (str(4 * 8192), "4")
    assert command.program[-1] == "GGUF_REPOSITORY:Q4_K_M"


def test_weights_without_an_option_need_a_checkpoint():
    _, command = given("vllm", "llama-3.1-8b", "h100-sxm", quant="W4A16g128")
    assert command.unsupported == ("weights in int4: the model must be a checkpoint in that format",)
    _, published = given("vllm", "gpt-oss-120b", "h100-sxm")
    assert published.unsupported == ()


def test_unsupported_techniques_are_listed():
    _, command = given("vllm", "llama-3.1-8b", "h100-sxm", techniques=["h2o"])
    assert command.unsupported == ("--with h2o",)
    assert "h2o" not in deployed_techniques()
    assert {"eagle", "mtp", "retrieval", "speculative", "prefix-cache"} <= deployed_techniques("vllm")
    assert "mtp" not in deployed_techniques("mlx")


def test_layouts_without_an_option_are_listed():
    """No engine divides the sequences of ranks that share a key head; llama.cpp overlaps no halves of a batch."""
    for engine, model, device, own in (
        ("vllm", "gemma-2b", "h100-sxm", ()),
        ("llama.cpp", "gemma-2b", "rtx-4090", ("--two-batch-overlap",)),
    ):
        _, command = given(engine, model, device, tp=2, batch_sharded_attention=True, two_batch_overlap=True)
        assert command.unsupported == (*own, "--batch-sharded-attention")


@pytest.mark.parametrize("engine", [name for name in server_engines() if name != "mlx"])
def test_manifests_start_the_same_server(engine):
    model, device, options = SETTINGS[engine][0]
    command = launch_command(Setting.of(model, device, **options), sequences=8, tokens=4096, engine=engine)
    (compose,) = yaml.safe_load_all(command.written("compose"))
    (service,) = compose["services"].values()
    deployment, network = yaml.safe_load_all(command.written("kubernetes"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == command.devices
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == command.devices
    assert network["spec"]["ports"][0]["port"] == command.server.port
    for words in (
        [*service.get("entrypoint", []), *service["command"]], [*container.get("command", []), *container["args"]]
    ):  # fmt: skip
        typed = " ".join(words)
        for option in command.options:
            assert option.name in typed or option.name.partition(".")[0] in typed
            assert option.value in typed
        assert "0.0.0.0" in typed
    assert "&id" not in command.written("kubernetes")


def test_a_server_that_keeps_its_cache_says_so():
    """mlx_lm.server has no --kv-bits (github.com/ml-explore/mlx-lm/issues/1043)."""
    for engine, device, quant, told in (
        ("mlx", "m4-max", "W4A16g64KV8g64z16", True),
        ("mlx", "m4-max", "W4A16g64", False),
        ("vllm", "h100-sxm", "KVfp8", False),
    ):
        setting = Setting.of("qwen3-8b", device, quant=quant)
        unsupported = launch_command(setting, sequences=1, tokens=99, engine=engine).unsupported
        assert any(part.startswith("a KV cache in ") for part in unsupported) is told


def test_an_engine_without_an_image_has_no_manifest():
    command = launch_command(Setting.of("qwen3-8b", "m4-max", quant="W4A16g64"), sequences=1, tokens=99, engine="mlx")
    with pytest.raises(InputError, match=r"^emit: mlx has no container image"):
        command.written("compose")


def test_a_form_is_named():
    assert parse_emit("vllm") == ("vllm", FORMS[0])
    assert parse_emit("sglang:kubernetes") == ("sglang", "kubernetes")
    for text, said in (("vlm", "no launch command of vlm is known; did you mean vllm"), ("vllm:helm", "emit must be")):
        with pytest.raises(InputError, match=said):
            parse_emit(text)


ASKED = ["analyze", "qwen3-8b", "h100-sxm", "--batch", "8", "--prompt", "1000", "--gen", "100"]


def test_commands_print_and_write_the_launch_command(capsys, tmp_path):
    assert main([*ASKED, "--emit", "vllm"]) == 0
    text = capsys.readouterr().out
    assert "vllm serve Qwen/Qwen3-8B" in text
    assert "# --max-model-len 1100: prompt and output of the longest request" in text
    path = tmp_path / "serve.yaml"
    assert main([*ASKED, "--engine", "sglang", "--emit", "sglang:compose", "-o", str(path)]) == 0
    assert "services" in yaml.safe_load(path.read_text())
    capsys.readouterr()
    asked = ["plan", "qwen3-8b", "--rate", "2", "--hardware", "h100-sxm", "--quant", "published", "--max-devices", "1"]
    assert main([*asked, "--engine", "vllm", "--emit", "vllm"]) == 0
    assert "vllm serve Qwen/Qwen3-8B" in capsys.readouterr().out
    assert main([*asked, "--engine", "vllm"]) == 0
    assert "vllm serve Qwen/Qwen3-8B" in " ".join(capsys.readouterr().out.split())
    assert main([*ASKED, "--engine", "vllm"]) == 0
    shown = capsys.readouterr().out
    assert "vllm serve Qwen/Qwen3-8B" in shown
    assert "--max-num-seqs 8" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--emit", "vlm"], "no launch command of vlm is known"),
        (["--emit", "vllm:helm"], "--emit must be ENGINE or ENGINE:FORM"),
        (["--engine", "sglang", "--emit", "vllm"], "--emit must be a command of the engine, sglang; got 'vllm'"),
        (["--batch", "4000", "--emit", "vllm"], "does not fit: no command is written"),
    ],
)
def test_mistakes_get_one_line(capsys, options, said):
    asked = [*ASKED[:3], *ASKED[5:]] if "--batch" in options else ASKED
    assert main([*asked, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
