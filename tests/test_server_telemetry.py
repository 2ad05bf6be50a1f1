"""Telemetry of servers: metrics and logs in the formats of engines, with known means."""

import json

import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.analyzing.phases import mixed_phase
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.reports.server_steps import REPORT
from llmviewer.timelines.server_metrics import is_telemetry, read_telemetry
from llmviewer.timelines.server_steps import compare_server, request_of
from llmviewer.workload import Spans, Workload

LABELS = '{engine="0",model_name="meta-llama/Llama-3.1-8B"}'
# 100 requests of 512 and 200 tokens in 1,000 steps: 20 decodes a step.
VLLM = f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{LABELS} 21.0
vllm:num_requests_waiting{LABELS} 3.0
vllm:kv_cache_usage_perc{LABELS} 0.31
vllm:prompt_tokens_total{LABELS} 51200.0
vllm:generation_tokens_total{LABELS} 20000.0
vllm:prefix_cache_hits_total{LABELS} 12800.0
vllm:num_preemptions_total{LABELS} 2.0
vllm:estimated_flops_per_gpu_total{LABELS} 1.2e+15
vllm:estimated_read_bytes_per_gpu_total{LABELS} 1.7e+13
vllm:estimated_write_bytes_per_gpu_total{LABELS} 1e+11
vllm:iteration_tokens_total_bucket{{engine="0",le="+Inf"}} 1000.0
vllm:iteration_tokens_total_count{LABELS} 1000.0
vllm:iteration_tokens_total_sum{LABELS} 71200.0
vllm:time_to_first_token_seconds_count{LABELS} 100.0
vllm:time_to_first_token_seconds_sum{LABELS} 8.0
vllm:inter_token_latency_seconds_count{LABELS} 19900.0
vllm:inter_token_latency_seconds_sum{LABELS} 238.8
vllm:request_queue_time_seconds_count{LABELS} 100.0
vllm:request_queue_time_seconds_sum{LABELS} 2.0
vllm:request_prompt_tokens_count{LABELS} 100.0
vllm:request_prompt_tokens_sum{LABELS} 51200.0
vllm:request_generation_tokens_count{LABELS} 100.0
vllm:request_generation_tokens_sum{LABELS} 20000.0
python_gc_objects_collected_total{{generation="0"}} 5e+06
"""
SGLANG = """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",priority=""} 16.0
sglang:num_running_reqs{model_name="m",priority="1"} 9.0
sglang:num_queue_reqs{model_name="m"} 0.0
sglang:token_usage{model_name="m"} 0.5
sglang:prompt_tokens_total{model_name="m"} 30000.0
sglang:generation_tokens_total{model_name="m"} 9000.0
sglang:time_to_first_token_seconds_sum{model_name="m"} 1.5
sglang:time_to_first_token_seconds_count{model_name="m"} 30.0
sglang:inter_token_latency_seconds_sum{model_name="m"} 90.0
sglang:inter_token_latency_seconds_count{model_name="m"} 8970.0
"""
TRTLLM = """trtllm_num_generation_requests{engine_type="trtllm"} 8.0
trtllm_request_success_total{finished_reason="stop"} 15.0
trtllm_request_success_total{finished_reason="length"} 5.0
trtllm_prompt_tokens_total{engine_type="trtllm"} 20000.0
trtllm_generation_tokens_total{engine_type="trtllm"} 4000.0
trtllm_time_per_output_token_seconds_sum{engine_type="trtllm"} 0.2
trtllm_time_per_output_token_seconds_count{engine_type="trtllm"} 20.0
"""
STEPS = [
    (2, 900, 0, "40.00"),
    (1, 300, 8, "25.00"),
    *[(0, 0, 8, f"{10 + n % 2}.00") for n in range(10)],
    (0, 0, 0, "0.02"),
]
VLLM_LOG = "".join(
    f"INFO 11-27 [loggers.py:182] Iteration({number}): {prompts} context requests, {tokens} context tokens, "
    f"{decodes} generation requests, {decodes} generation tokens, iteration elapsed time: {time} ms\n"
    for number, (prompts, tokens, decodes, time) in enumerate(STEPS)
)
SGLANG_LOG = """[2026-09-16 05:00:00] INFO: Application startup complete.
[2026-09-16 05:00:01] Decode batch. #running-req: 32, #token: 32800, token usage: 0.80, cuda graph: True, gen throughput (token/s): 3200.0, #queue-req: 3,
[2026-09-16 05:00:02] Decode batch, #running-req: 32, #token: 34080, token usage: 0.81, cuda graph: True, gen throughput (token/s): 1600.0, #queue-req: 3,
"""  # noqa: E501


def load_of(tmp_path, text, name="metrics.txt", **options):
    path = tmp_path / name
    path.write_text(text)
    assert is_telemetry(path)
    return read_telemetry(path, max_bytes=2**20, **options)


def test_metrics_of_vllm_by_hand(tmp_path):
    load = load_of(tmp_path, VLLM)
    assert (load.engine, load.steps, load.batch, load.prompt, load.output) == ("vllm", 1000, 20, 512, 200)
    assert (load.cached, load.context, load.preemptions) == (0.25, 612, 2)
    assert (load.running, load.waiting, load.cache_usage) == (21, 3, 0.31)
    assert load.token_s == pytest.approx(0.012)
    assert load.ttft_s == pytest.approx(0.08)
    assert load.queue_s == pytest.approx(0.02)
    assert load.ops == pytest.approx(1.2e12)
    assert load.bytes == pytest.approx(1.71e10)
    assert request_of(load) == {"batch": 20, "prompt": 512, "gen": 200, "kv_len": 612}


def test_steps_of_a_server_have_their_share_of_prefills(tmp_path):
    """One of 200 steps of a request prefills it: a tenth of the steps of 20 requests, on 384 tokens not cached."""
    load = load_of(tmp_path, VLLM)
    analysis = analyze("llama-3.1-8b", "h100-sxm", **request_of(load))
    found = compare_server(load, analysis, file="metrics.txt")
    assert found.prompts_per_step == pytest.approx(0.1)
    decode = analysis.phases.decode
    prompt = Spans(batch=1, q_len=384, kv_len=512)
    mixed = mixed_phase(analysis.setting, Workload((prompt, *decode.workload.groups)))
    alone = mixed_phase(analysis.setting, Workload((prompt,)))
    token, ttft = found.times
    assert token.measured_s == load.token_s
    assert token.bound_s == pytest.approx(0.9 * decode.time_s + 0.1 * mixed.time_s)
    assert token.expected_s == pytest.approx(0.9 * decode.expected_time_s + 0.1 * mixed.expected_time_s)
    assert token.expected_low_s < token.expected_s < token.expected_high_s
    assert ttft.measured_s == pytest.approx(0.06)
    assert ttft.bound_s == pytest.approx(alone.time_s)
    assert found.ops == pytest.approx(0.9 * decode.total.ops + 0.1 * mixed.total.ops)
    words = " ".join(REPORT.text(found).split())
    assert "Queue: 20.0 ms of a TTFT of 80.0 ms (25%)." in words
    assert "2 preemptions" in words
    assert "Work of a mean step, as vLLM estimates it: 1.20 TOP, 17.1 GB (counted here: " in words
    assert "Time between tokens: expected " in words
    document = json.loads(REPORT.json(found))
    assert document["load"]["batch"] == 20
    assert document["times"][0]["name"] == "time between tokens"


def test_the_time_between_two_files_counts(tmp_path):
    """A server that did twice as much by the second: means are those of the second half."""
    earlier = tmp_path / "earlier.txt"
    earlier.write_text(VLLM)
    later = VLLM.replace("51200.0", "102400.0").replace(" 20000.0", " 60000.0").replace(" 1000.0", " 3000.0")
    later = later.replace("_sum" + LABELS + " 238.8", "_sum" + LABELS + " 1000.0").replace(" 100.0", " 200.0")
    later = later.replace("latency_seconds_count" + LABELS + " 19900.0", "latency_seconds_count" + LABELS + " 59800.0")
    load = load_of(tmp_path, later, since=earlier)
    assert (load.steps, load.batch, load.prompt, load.output) == (2000, 20, 512, 400)
    assert load.token_s == pytest.approx((1000 - 238.8) / 39900)
    assert load.running == 21  # a gauge is that of the second
    with pytest.raises(InputError, match=r"must be the earlier of two files of one server; vllm:prompt_tokens_total"):
        read_telemetry(earlier, since=tmp_path / "metrics.txt", max_bytes=2**20)
    (tmp_path / "s.txt").write_text(SGLANG)
    with pytest.raises(InputError, match="must be metrics of vLLM"):
        read_telemetry(earlier, since=tmp_path / "s.txt", max_bytes=2**20)


def test_metrics_of_other_engines(tmp_path):
    load = load_of(tmp_path, SGLANG)
    assert (load.engine, load.batch, load.prompt, load.output) == ("sglang", 16, 1000, 300)
    assert load.token_s == pytest.approx(90 / 8970)
    load = load_of(tmp_path, TRTLLM)
    assert (load.engine, load.batch, load.prompt, load.output) == ("tensorrt-llm", 8, 1000, 200)
    assert load.token_s == pytest.approx(0.01)


def test_logs_of_steps(tmp_path):
    load = load_of(tmp_path, VLLM_LOG, "server.log")
    assert [len(steps) for steps in (load.decode_steps, load.mixed_steps, load.prefill_steps)] == [10, 1, 1]
    assert (load.batch, load.prompt) == (8, 400)
    analysis = analyze("llama-3.1-8b", "h100-sxm", batch=8, prompt=400)
    found = compare_server(load, analysis, file="server.log")
    assert [(time.name, round(1e3 * time.measured_s, 3)) for time in found.times] == [
        ("decode steps", 10.5), ("mixed steps", 25), ("prefill steps", 40),
    ]  # fmt: skip
    mixed = Workload((Spans(batch=1, q_len=300, kv_len=300), Spans(batch=8, q_len=1, kv_len=401)))
    assert found.times[1].bound_s == pytest.approx(mixed_phase(analysis.setting, mixed).time_s)
    load = load_of(tmp_path, SGLANG_LOG, "sglang.log")
    assert (load.batch, load.context) == (32, 1045)
    assert [step.time_s for step in load.decode_steps] == [0.01, 0.02]


def test_the_command_line_takes_metrics(tmp_path, capsys):
    path = tmp_path / "metrics.txt"
    path.write_text(VLLM)
    assert main(["timeline", str(path), "llama-3.1-8b", "h100-sxm"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "vLLM server in metrics.txt: decode batch 20, prompt 512, context 612" in printed
    assert main(["timeline", str(path), "llama-3.1-8b", "h100-sxm", "--batch", "40"]) == 0
    assert "decode batch 40, prompt 512" in " ".join(capsys.readouterr().out.split())
    page = tmp_path / "server.html"
    assert main(["timeline", str(path), "llama-3.1-8b", "h100-sxm", "-o", str(page)]) == 0
    assert "time between tokens" in page.read_text()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("vllm:generation_tokens_total many\n", r":1: must be a metric, its labels and a number; got vllm:gen"),
        ("vllm:generation_tokens_total{a 1\n", r":1: must be a metric, its labels and a number"),
        ("vllm:num_requests_running 3\n", r"counts no tokens; give metrics of a server that has answered requests"),
        ("vllm:generation_tokens_total nan\n", r"counts no tokens"),
        ("vllm:generation_tokens_total 1e300\n", r"counts no tokens"),
    ],
)
def test_unusable_metrics_are_refused(tmp_path, capsys, text, wrong):
    path = tmp_path / "m.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=wrong):
        read_telemetry(path, max_bytes=2**20)
    assert main(["timeline", str(path), "llama-3.1-8b", "h100-sxm"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        VLLM_LOG.splitlines()[0].replace("40.00", "..."),
        "Decode batch. #running-req: 3, #token: 5, gen throughput (token/s): ..., #queue-req: 3\n",
        "Decode batch. #running-req: 3, #token: 5, " * 20_000,
        "Iteration(1): 1 context requests, " + "9" * 100_000,
    ],
    ids=["time", "throughput", "repeated", "digits"],
)
def test_lines_that_are_no_steps_are_not_taken_for_a_log(tmp_path, line):
    """However long they are: patterns are searched in linear time."""
    path = tmp_path / "server.log"
    path.write_text(line)
    assert not is_telemetry(path)
    path.write_text(VLLM_LOG + line)
    assert len(read_telemetry(path, max_bytes=2**22).decode_steps) == 10


def test_telemetry_is_of_servers_alone(tmp_path, capsys):
    path = tmp_path / "m.txt"
    path.write_text(VLLM)
    with pytest.raises(InputError, match="must have at most 100 bytes"):
        read_telemetry(path, max_bytes=100)
    assert main(["timeline", str(path), "llama-3.1-8b", "h100-sxm", "--passes", "3"]) == 2
    assert "are of traces" in capsys.readouterr().err
    trace = tmp_path / "t.json"
    trace.write_text("[]")
    assert not is_telemetry(trace)
    assert main(["timeline", str(trace), "llama-3.1-8b", "h100-sxm", "--since", str(path)]) == 2
    assert "--since is of metrics of a server" in capsys.readouterr().err
    with pytest.raises(InputError, match="generates none"):
        compare_server(read_telemetry(path, max_bytes=2**20), analyze("bert-base", "h100-sxm"), file="m.txt")
