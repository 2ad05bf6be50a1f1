"""Memory that servers reserve, and tokens of their KV caches, against logs, hand counts and laws."""

import re
from importlib import util
from math import inf, isclose
from pathlib import Path

import numpy as np
import pytest

from llmviewer import Setting, advise, analyze, capacity, simulate
from llmviewer._layout import data_dir
from llmviewer.cli import main
from llmviewer.devices.files import load_hardware
from llmviewer.documents import read_yaml
from llmviewer.errors import InputError
from llmviewer.expectation.engines import PAGES, SPLIT, TOTAL, MemoryRules, engine_names, find_engine
from llmviewer.reports.advice import REPORT as ADVICE
from llmviewer.server_memory import Layers, Pool, visible_bytes
from llmviewer.serving.saturation import max_throughput

from .server_startups import DEVELOPED, HELD_OUT, startups

GIB = 2**30
LIMITS = {"vllm": (0.04, 0.15), "sglang": (0.08, 0.10), "tensorrt-llm": (0.05, 0.06)}  # median error, nine of ten


@pytest.fixture(scope="module")
def page():
    """benchmarks/server_memory.py, which writes the section."""
    spec = util.spec_from_file_location("page", Path(__file__).parent.parent / "benchmarks" / "server_memory.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def known(engine, half):
    """Rows of an engine whose logs are complete."""
    return [
        one for one in startups() if not one.row["unknown"] and (one.row["engine"], one.row["half"]) == (engine, half)
    ]


@pytest.mark.parametrize("engine", LIMITS)
def test_kv_caches_are_as_large_as_logged(engine):
    found = [*known(engine, DEVELOPED), *known(engine, HELD_OUT)]
    ratios = [one.ratio for one in found if one.ratio is not None]
    errors = np.abs(np.array(ratios) - 1)
    most_median, most = LIMITS[engine]
    assert len(errors) >= 4
    assert np.median(errors) <= most_median
    assert np.quantile(errors, 0.9) <= most
    assert abs(np.median(ratios) - 1) <= most_median


def test_vllm_pads_experts_in_mxfp4_and_llama_cpp_keeps_embeddings_in_host_memory():
    """64.38 GiB (vLLM issue 33155), and 6597.68 MiB (github.com/Dahaka52/Nira-AI, logs/llama_server.log)."""
    (padded,) = Setting.of("gpt-oss-120b", "h100-sxm", engine="vllm").footprint.stages
    (plain,) = Setting.of("gpt-oss-120b", "h100-sxm").footprint.stages
    assert padded.weight_bytes / GIB == pytest.approx(64.38, rel=0.005)
    assert padded.weight_bytes > 1.05 * plain.weight_bytes
    assert not capacity(Setting.of("gpt-oss-120b", "h100-sxm", engine="vllm", engine_version="0.14")).starts
    asked = {"quant": "Q4_K_M", "engine": "llama.cpp"}
    (nemo,) = Setting.of("mistral-nemo-12b", "rtx-5070", **asked).footprint.stages
    assert nemo.weight_bytes / 2**20 == pytest.approx(6597.68, rel=0.03)
    of_rtx, of_mac = (Setting.of("qwen3.5-9b", device, **asked) for device in ("rtx-4060", "m4-max"))
    assert of_rtx.host_embeddings == pytest.approx(248320 * 4096 * 4.5 / 8)
    assert of_mac.host_embeddings == Setting.of("qwen2.5-3b", "rtx-4060", **asked).host_embeddings == 0
    found = analyze("qwen3.5-9b", "rtx-4060", prompt=60000, gen=100, **asked)
    assert found.memory.fits
    assert found.memory.weight_bytes == pytest.approx(of_rtx.footprint.stages[0].weight_bytes)


@pytest.mark.parametrize("half", [DEVELOPED, HELD_OUT])
def test_predicted_server_starts_match_logged_ones(half):
    """All but one: vLLM 0.6 profiled chunks without sampling, so Llama 3.1 8B started with 45,000 tokens on 24 GB."""
    found = [one for engine in engine_names() for one in known(engine, half)]
    wrong = [one.row["max_model_len"] for one in found if one.expected.starts != one.starts]
    assert wrong in ([], ["45000"])
    assert half == DEVELOPED or {one.starts for one in found} == {True, False}


def test_the_page_has_the_errors(page):
    assert page.PAGE.read_text(encoding="utf-8") == page.page(startups()), "python benchmarks/server_memory.py"


def test_a_uniform_cache_by_hand():
    """32 layers x 2 x 8 heads x 128 x 2 B = 128 KiB a token; 79.1 GiB visible; logits of 1024 sequences at 18 B."""
    found = capacity(Setting.of("llama-3.1-8b", "h100-sxm", engine="vllm", memory_fraction=0.9))
    sampling, overhead = 18 * 1024 * 128256, 0.1 * GIB + 51 * 32 * 0.25 * 2**20
    assert isclose(found.total_bytes, 81559 * 2**20 * (1 - 0.0016) - 0.41 * GIB)
    assert isclose(found.activation_bytes, sampling)
    assert isclose(found.other_bytes, overhead)
    pool = 0.9 * found.total_bytes - found.weight_bytes - sampling - overhead
    assert found.kv_capacity_tokens == int(pool // (16 * 131072)) * 16
    assert isclose(found.kv_cache_bytes, pool)


@pytest.mark.parametrize(("options", "tokens"), [({}, 131072), ({"max_num_seqs": 4, "max_model_len": 4096}, 16384)])
def test_llama_cpp_allocates_the_context_and_no_more(options, tokens):
    """131,072 B a token: 17.2 GB of the 6.6 TB beside a CPU."""
    found = capacity(Setting.of("llama-3.1-8b", "epyc-9654", quant="Q4_K_M", engine="llama.cpp", **options))
    assert found.kv_capacity_tokens == tokens
    assert isclose(found.kv_cache_bytes, tokens * 131072)
    assert found.pool_bytes > 100 * found.kv_cache_bytes


def pool(rules, *layers, size, longest=32768, block=16, chunk=2048):
    return Pool(size=size, layers=layers, block=block, chunk=chunk, longest=longest, rules=rules)


def test_groups_of_a_hybrid_share_blocks_by_hand():
    """Qwen3.5-27B on 4 devices, vLLM 0.19: 16 layers of attention of 1 KiB a token, 48 states of 801,792 B.

    Blocks have 784 tokens, and 7 GiB 585 of them: "GPU KV cache size: 114,464 tokens", 12.98x for 32,768 tokens.
    """
    attention, states = Layers(16, 1024.0), Layers(48, 0.0, inf, 801_792.0)
    by_group = MemoryRules(base=TOTAL, pool=PAGES, by_group=True)
    assert pool(by_group, attention, states, size=7.0 * GIB).tokens == 585 // 4 * 784 == 114_464
    newer = pool(MemoryRules(base=TOTAL, pool=PAGES), attention, states, size=7.0 * GIB)
    assert newer.requests(32768) == 585 / (42 + 3)
    assert newer.tokens == 585 * 32768 // 45


def test_pools_of_states_and_windows_by_hand():
    rules = MemoryRules(base=TOTAL, pool=SPLIT, states=0.9, state_slots=3, windows=0.8)
    windows = pool(rules, Layers(12, 1024.0), Layers(12, 1024.0, 128.0), size=GIB, block=1)
    assert windows.tokens == int(GIB / (12 * 1024 * 1.8))
    states = pool(rules, Layers(12, 1024.0), Layers(36, 0.0, inf, 2.0**20), size=GIB, block=1)
    assert states.tokens == int(GIB / 1.9 / (12 * 1024))
    assert isclose(states.requests(100), GIB * 0.9 / 1.9 / (36 * 2**20) / 3)


def test_the_cache_of_a_server_does_not_depend_on_its_requests():
    sizes = {
        analyze("llama-3.1-8b", "l40s", engine="vllm", batch=batch, prompt=prompt, gen=gen).capacity.kv_capacity_tokens
        for batch, prompt, gen in ((1, 16, 16), (64, 1024, 128), (8, 30000, 1000))
    }
    assert len(sizes) == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
def test_larger_options_leave_less_kv_cache(engine):
    def tokens(**options):
        return capacity(Setting.of("llama-3.1-8b", "l40s", engine=engine, **options)).kv_capacity_tokens

    base = tokens()
    assert tokens(quant="W4A16g128") >= base
    assert tokens(max_num_batched_tokens=32768) <= base
    if engine != "llama.cpp":
        assert tokens(memory_fraction=0.7) < tokens(memory_fraction=0.8)
        assert tokens(tp=2) > base
        assert tokens(dp=2) == 2 * base
    without = capacity(Setting.of("llama-3.1-8b", "l40s"))
    assert without.starts
    assert without.kv_capacity_tokens >= base
    assert without.used_bytes == load_hardware("l40s").capacity


def test_caches_on_several_devices():
    def tokens(model, **options):
        return capacity(Setting.of(model, "h200-sxm", engine="vllm", memory_fraction=0.9, **options))

    two, four = (tokens("qwen2.5-3b", tp=tp) for tp in (2, 4))  # two KV heads, replicated on four devices
    each = {found.pool_bytes / found.kv_capacity_tokens for found in (two, four)}
    assert max(each) / min(each) < 1.001
    latent = tokens("deepseek-v3", tp=8)  # (512 + 64) x 2 B x 61 layers on each device
    assert isclose(latent.pool_bytes / latent.kv_capacity_tokens, 70272, rel_tol=1e-4)
    split = tokens("deepseek-v3", tp=8, cp=2)
    assert split.pool_bytes / split.kv_capacity_tokens < 0.6 * 70272
    draft = tokens("llama-3.1-70b", tp=4, techniques=["speculative:draft=llama-3.2-1b,gamma=4,alpha=0.7"])
    alone = tokens("llama-3.1-70b", tp=4)
    assert draft.weight_bytes > alone.weight_bytes
    assert draft.kv_capacity_tokens < alone.kv_capacity_tokens


def test_error_for_a_server_that_does_not_start_suggests_a_context_length():
    found = capacity(Setting.of("llama-3.1-8b", "rtx-4090", engine="vllm"))
    assert not found.starts
    assert found.concurrency == 0
    hint = f"give --max-model-len {found.longest_model_len} or less"
    assert found.reason == f"no request of max_model_len, 131,072 tokens, fits the KV cache; {hint}"
    longest = Setting.of("llama-3.1-8b", "rtx-4090", engine="vllm", max_model_len=found.longest_model_len)
    assert capacity(longest).starts
    longer = Setting.of("llama-3.1-8b", "rtx-4090", engine="vllm", max_model_len=found.longest_model_len + 16)
    assert not capacity(longer).starts
    none_left = capacity(Setting.of("llama-3.1-70b", "rtx-4090", engine="sglang"))
    assert "has no memory left for a KV cache" in none_left.reason


def test_max_num_seqs_limits_requests_at_once():
    setting = Setting.of("llama-3.1-8b", "h100-sxm", engine="vllm", max_num_seqs=16)
    found = capacity(setting, 128)
    assert (found.concurrency, found.limiter) == (16, "max_num_seqs")
    assert capacity(setting, 131072).limiter == "KV cache"


def test_a_scheme_alone_is_that_of_the_published_checkpoint():
    """61 layers: q_a 7168 x 1536, q_b 1536 x 24576, kv_a 7168 x 576, kv_b 512 x 32768 in bf16, not 4.5 bits."""
    mixed, named = (Setting.of("deepseek-r1", "b200", tp=8, quant=q) for q in ("nvfp4KV8", "nvfp4KV8,o_proj=nvfp4"))
    parts = ("q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj")
    assert str(mixed.quantization) == "nvfp4KV8, " + ", ".join(f"{part}=W16A16" for part in parts)
    assert Setting.of("deepseek-r1", "b200", tp=8, quant=str(mixed.quantization)) == mixed
    sizes = 7168 * 1536 + 1536 * 24576 / 8 + 7168 * 576 + 512 * 32768 / 8
    grown = capacity(mixed).weight_bytes - capacity(named).weight_bytes
    assert isclose(grown, 61 * sizes * (16 - 4.5) / 8, rel_tol=0.01)
    other = Setting.of("deepseek-v3", "b200", tp=8, quant="nvfp4")
    assert str(other.quantization) == "nvfp4"


def test_versions_have_their_own_rules():
    older, newer = (find_engine("vllm", options=one.engine.options).memory for one in (
        Setting.of("gpt2", "l4", engine="vllm", engine_version="0.11"), Setting.of("gpt2", "l4", engine="vllm"),
    ))  # fmt: skip
    assert (older.fraction, older.sampler, older.by_group) == (0.9, 40, True)
    assert (newer.fraction, newer.sampler, newer.by_group) == (0.92, 18, False)


@pytest.mark.parametrize("name", engine_names())
def test_numbers_of_engines_name_their_sources(name):
    file = read_yaml(data_dir("engines") / f"{name}.yaml").data
    sections = [part for key, part in file.items() if key not in ("sources", "schedulers", "earlier", "command")]
    parts = [part for part in (*sections, *file["schedulers"]) if isinstance(part, dict)]
    inner = [value for part in parts for value in part.values() if isinstance(value, dict) and "source" in value]
    assert parts
    for part in (*parts, *inner):
        assert part["source"] in file["sources"]
    for source in file["sources"].values():
        assert source["title"]
        assert source["year"] >= 2022


def test_programs_see_less_than_nvidia_smi():
    for name, gib in (("rtx-3090", 23.57), ("h100-sxm", 79.18), ("h200-sxm", 139.80), ("b200", 178.35)):
        assert isclose(visible_bytes(load_hardware(name)) / GIB, gib, abs_tol=0.1), name
    assert visible_bytes(load_hardware("gb10")) == load_hardware("gb10").capacity


def test_report_states_whether_the_server_starts_and_its_kv_capacity(capsys):
    assert main(["analyze", "llama-3.1-8b", "rtx-4090", "--engine", "vllm"]) == 0
    first = " ".join(" ".join(capsys.readouterr().out.splitlines()[2:4]).split())
    assert first.startswith("server vLLM 0.33 with its defaults does not start: no request of max_model_len,")
    assert main(["analyze", "llama-3.1-8b", "rtx-4090", "--engine", "vllm", "--max-model-len", "8192"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "requests of 1,152 tokens at once, limited by KV cache" in text
    assert main(["analyze", "llama-3.1-8b", "rtx-4090"]) == 0
    assert "server  " not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            ["llama-3.1-8b", "l4", "--engine", "vllm", "--batch", "4"],
            "; with the command below it starts: KV cache {launched.kv_capacity_tokens:,} tokens, 4 requests at once",
        ),
        (
            ["qwen3-32b", "h100-sxm", "--quant", "fp8", "--tp", "2", "--engine", "vllm", "--batch", "32"],
            "; with the command below: KV cache {launched.kv_capacity_tokens:,} tokens, 32 requests at once",
        ),
        (
            ["llama-3.1-8b", "rtx-2080", "--quant", "Q4_K_M", "--engine", "llama.cpp"],
            "; with the command below: KV cache 1,152 tokens, 1 request at once",
        ),
    ],
)
def test_server_line_states_the_server_of_the_printed_command(capsys, asked, said):
    assert main(["analyze", *asked]) == 0
    text = " ".join(capsys.readouterr().out.split())
    batch = int(asked[asked.index("--batch") + 1]) if "--batch" in asked else 1
    quant = asked[asked.index("--quant") + 1] if "--quant" in asked else None
    tp = 2 if "--tp" in asked else 1
    engine = asked[asked.index("--engine") + 1]
    options = {"quant": quant, "tp": tp, "engine": engine, "max_model_len": 1152, "max_num_seqs": batch}
    launched = capacity(Setting.of(*asked[:2], **options), 1152)
    assert launched.starts
    assert said.format(launched=launched) in text
    assert ("TTFT is that of" in text) == (batch > 1)
    assert main(["analyze", *asked, "--max-model-len", "1152", "--max-num-seqs", str(batch)]) == 0
    assert "with the command below" not in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--memory-fraction", "0.9"], "--memory-fraction must be given with an engine, whose option it is"),
        (["--engine", "vllm", "--memory-fraction", "1.5"], "--memory-fraction must be from 0.01 to 1; got 1.5"),
        (["--engine", "vllm", "--engine-version", "new"], "engine version must be numbers with dots, such as 0.33"),
    ],
)
def test_mistakes_get_one_line(capsys, options, said):
    assert main(["analyze", "gpt2", "l4", *options]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [("vllm", {"max_model_len": 131_073}, "max_model_len must be at most the 131,072 tokens"),
     ("sglang", {"max_model_len": 131_073}, "max_model_len must be at most the 131,072 tokens"),
     ("vllm", {"max_num_seqs": 8193}, "got 8,192 tokens of a step and 8,193 sequences"),
     ("vllm", {"max_num_seqs": 8, "max_num_batched_tokens": 7}, "got 7 tokens of a step and 8 sequences"),
     ("sglang", {"max_model_len": 1151}, "at least the 1,152 tokens of a request")],
)  # fmt: skip
def test_options_that_a_server_refuses_are_errors(engine, options, message):
    """vllm/config/scheduler.py: verify_max_model_len(); sglang/srt/configs/model_config.py."""
    with pytest.raises(InputError, match=message):
        analyze("llama-3.1-8b", "h100-sxm", engine=engine, **options)


def test_options_at_the_limits_of_a_server_are_accepted():
    asked = {"max_model_len": 1152, "max_num_seqs": 8, "max_num_batched_tokens": 8}
    assert analyze("llama-3.1-8b", "h100-sxm", engine="vllm", **asked).capacity.starts
    longest = Setting.of("llama-3.1-8b", "h100-sxm", engine="llama.cpp", max_model_len=200_000)
    assert capacity(longest).longest_model_len <= longest.model.max_context


def test_vllm_runs_no_more_sequences_than_a_step_has_tokens():
    """max_num_seqs is capped by max_num_batched_tokens unless given, vllm/engine/arg_utils.py."""
    setting = Setting.of("llama-3.1-8b", "h100-sxm", engine="vllm", max_num_batched_tokens=4)
    assert capacity(setting, 1152).concurrency == 4


@pytest.mark.parametrize("run", [simulate, max_throughput])
@pytest.mark.parametrize(
    ("server", "argument"),
    [({"max_num_seqs": 8}, {"max_batch": 300}), ({"max_num_batched_tokens": 512}, {"policy": "chunked:2048"}),
     ({"max_model_len": 1151}, {})],
)  # fmt: skip
def test_arguments_that_contradict_the_server_are_errors(run, server, argument):
    asked = {"rate": 5} if run is simulate else {}
    with pytest.raises(InputError, match=next(iter(server))):
        run("llama-3.1-8b", "h100-sxm", engine="vllm", **asked, **server, **argument)


def test_a_batch_and_a_prefill_beyond_those_of_the_server_are_noted():
    asked = {"engine": "vllm", "batch": 32}
    larger, smaller = {"max_num_batched_tokens": 32 * 1024}, {"max_num_seqs": 16, "max_num_batched_tokens": 512}
    plain, limited = (analyze("llama-3.1-8b", "h100-sxm", **asked, **own).remarks for own in (larger, smaller))
    further = [note for note in limited if note not in plain]
    assert any("batch 32 is more than vLLM runs, max_num_seqs 16" in note for note in further)
    assert any("prefill is one pass of 32,768 tokens" in note and "at most 512 a step" in note for note in further)
    assert not any("max_num" in note for note in plain)
    for batch, offers in ((1, "batch 4 ("), (4, None)):
        told = analyze("llama-3.1-8b", "h100-sxm", engine="vllm", batch=batch, max_num_seqs=4).phases.decode.advice
        assert offers in told if offers else not re.search(r"batch \d", told)
    text = " ".join(ADVICE.text(advise("llama-3.1-8b", "h100-sxm", **asked, max_num_seqs=8)).split())
    assert "Batch 32 is more than vLLM runs, max_num_seqs 8" in text
