"""The same requests through Vidur's schedulers: `python benchmarks/peer_scheduling.py` (`pip install vidur==0.0.26`).

Vidur (arXiv:2405.05465, github.com/microsoft/vidur, MIT) is a simulator of its own, with schedulers after vLLM and
Sarathi-Serve. Here its steps take the times that llmviewer has for the same steps, so that only what the two schedulers
put into each step is compared: chunks, prompts, batches and the order of requests. LLaMA 3.1 8B on an H100, at the
bound. Preemptions are left out: a request that loses its cache ends this version of Vidur with a failed assertion.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from vidur.config import (
    CacheConfig,
    ClusterConfig,
    MetricsConfig,
    ReplicaConfig,
    SarathiSchedulerConfig,
    SimulationConfig,
    SyntheticRequestGeneratorConfig,
    VllmSchedulerConfig,
)
from vidur.entities import Batch, Request
from vidur.entities.execution_time import ExecutionTime
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
from vidur.request_generator import RequestGeneratorRegistry
from vidur.simulator import Simulator

from llmviewer import simulate
from llmviewer.serving.kv_cache import Caches
from llmviewer.serving.steps import Steps
from llmviewer.serving.traffic import Traffic
from llmviewer.units import seconds
from llmviewer.workload import Spans

_MODEL, _DEVICE = "llama-3.1-8b", "h100-sxm"
_LENGTHS = {"prompt_lengths": "uniform:50-1500", "gen_lengths": "uniform:10-300"}
_SCHEDULERS = {
    "chunked:512": lambda batch: SarathiSchedulerConfig(chunk_size=512, batch_size_cap=batch),
    "chunked:2048": lambda batch: SarathiSchedulerConfig(chunk_size=2048, batch_size_cap=batch),
    "prefill-first:4096": lambda batch: VllmSchedulerConfig(max_tokens_in_batch=4096, batch_size_cap=batch),
}
_CASES = ((10, 128), (30, 128), (30, 24))  # requests per second, largest batch
_REQUESTS = 1000


class _StepTimes:
    """Times of llmviewer's steps for batches of Vidur."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def get_execution_time(self, batch: Batch, _: int) -> ExecutionTime:
        """The time of a step, as that of one kernel of one layer."""
        decoding, chunks = [], []
        for request, new, context in zip(batch.requests, batch.num_q_tokens, batch.num_kv_tokens, strict=True):
            if request.is_prefill_complete:
                decoding.append(context)
            else:
                last = float(context == request.num_prefill_tokens)
                chunks.append(Spans(batch=1.0, q_len=float(new), kv_len=float(context), logits=last))
        mean = float(np.mean(decoding)) if decoding else 0.0
        if not chunks:
            step_s = self._steps.decoding_s([(len(decoding), mean)])
        else:
            group = (self._steps.decoding_group(float(len(decoding)), mean),) if decoding else ()
            step_s = self._steps.step_s([(*group, *chunks)])
        times = dict.fromkeys(_TIMES, 0.0) | {"attention_prefill_execution_time": 1e3 * float(step_s)}
        return ExecutionTime(num_layers_per_pipeline_stage=1, **times)


_TIMES = (
    "attention_rope_execution_time", "attention_kv_cache_save_execution_time", "attention_decode_execution_time",
    "attention_prefill_execution_time", "attention_layer_pre_proj_execution_time",
    "attention_layer_post_proj_execution_time", "mlp_layer_up_proj_execution_time",
    "mlp_layer_down_proj_execution_time", "mlp_layer_act_execution_time", "attn_norm_time", "mlp_norm_time", "add_time",
    "tensor_parallel_communication_time", "pipeline_parallel_communication_time",
)  # fmt: skip


class _Requests:
    """The requests of a traffic as a generator of Vidur."""

    def __init__(self, traffic: Traffic) -> None:
        columns = (traffic.arrival_s, traffic.prompt, traffic.gen)
        self.requests = [
            Request(arrived_at=arrival_s, num_prefill_tokens=prompt, num_decode_tokens=gen)
            for arrival_s, prompt, gen in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def generate(self) -> list[Request]:
        """All requests."""
        return self.requests


def peer(run: Any, scheduler: Any) -> dict[str, float]:
    """Numbers of the same requests in Vidur."""
    steps, longest = Steps(run.setting), int(np.max(run.traffic.prompt + run.traffic.gen))
    blocks = Caches.of(steps, run.traffic, run.policy, run.block).blocks
    generator = _Requests(run.traffic)
    ExecutionTimePredictorRegistry.get = staticmethod(lambda *_, **__: _StepTimes(steps))
    RequestGeneratorRegistry.get = staticmethod(lambda *_: generator)
    with tempfile.TemporaryDirectory() as folder:
        config = SimulationConfig(
            log_level="error",
            cluster_config=ClusterConfig(
                replica_config=ReplicaConfig(num_pipeline_stages=1, tensor_parallel_size=1),
                cache_config=CacheConfig(
                    block_size=run.block, num_blocks=int(blocks.room_bytes / blocks.bytes_of_one(run.block))
                ),
                replica_scheduler_config=scheduler,
            ),
            request_generator_config=SyntheticRequestGeneratorConfig(max_tokens=longest),
            metrics_config=MetricsConfig(
                write_metrics=False, store_plots=False, enable_chrome_trace=False, output_dir=folder
            ),
        )
        Simulator(config).run()
    requests = generator.requests
    arrival_s, first_s, finish_s = (
        np.array([getattr(one, name) for one in requests])
        for name in ("arrived_at", "prefill_completed_at", "completed_at")
    )
    several = run.traffic.gen > 1
    return {
        "ttft": float(np.mean(first_s - arrival_s)),
        "p99_ttft": float(np.percentile(first_s - arrival_s, 99)),
        "tpot": float(np.mean((finish_s - first_s)[several] / (run.traffic.gen[several] - 1))),
        "e2e": float(np.mean(finish_s - arrival_s)),
    }


def own(run: Any) -> dict[str, float]:
    """Numbers of a simulation."""
    return {
        "ttft": float(np.mean(run.ttft_s)), "p99_ttft": float(np.percentile(run.ttft_s, 99)),
        "tpot": float(np.mean(run.tpot_s)), "e2e": float(np.mean(run.latency_s)),
    }  # fmt: skip


def row(policy: str, rate: float, max_batch: int) -> str:
    """A row of the table of docs/serving.md, each cell with llmviewer's number and Vidur's."""
    run = simulate(
        _MODEL, _DEVICE, rate=rate, requests=_REQUESTS, policy=policy, max_batch=max_batch, bound=True, **_LENGTHS
    )
    ours, theirs = own(run), peer(run, _SCHEDULERS[policy](max_batch))
    cells = [f"{seconds(ours[name])}, {seconds(theirs[name])}" for name in ours]
    return f"| `{policy}` | {rate} | {max_batch} | " + " | ".join(cells) + " |"


def main() -> None:
    """Prints the table of docs/serving.md; each row by a process, as Vidur counts replicas of all simulations."""
    print("| policy | req/s | max batch | mean TTFT | p99 TTFT | mean TPOT | mean E2E |")
    print("|---|---|---|---|---|---|---|")
    for policy in _SCHEDULERS:
        for rate, max_batch in _CASES:
            with ProcessPoolExecutor(1) as pool:
                print(pool.submit(row, policy, rate, max_batch).result(), flush=True)


if __name__ == "__main__":
    main()
