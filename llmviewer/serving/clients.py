"""Clients of serving benchmarks: the requests that they send if given a concurrency, and lengths that they draw."""

from __future__ import annotations

from typing import Final, NamedTuple

from ..errors import InputError, suggest


class Client(NamedTuple):
    """A benchmark client. It sends requests at once, or as others finish; warm-up requests are not measured.

    rounds    requests of each of its users; 0: `requests` of all
    shortest  shortest length over the given one, up to which lengths are uniform
    ttft      statistic of the TTFT that it publishes
    """

    title: str
    rounds: int
    requests: int
    shortest: float
    ttft: str
    source: str

    def count(self, concurrency: int) -> int:
        """Number of measured requests."""
        return self.rounds * concurrency or max(self.requests, concurrency)

    def lengths(self, tokens: int) -> str:
        """Lengths of prompts or outputs, in the notation of parse_lengths()."""
        shortest = max(int(self.shortest * tokens), 1)
        return f"uniform:{shortest}-{tokens}" if shortest < tokens else str(tokens)


CLIENTS: Final = {
    "inferencex": Client(
        "InferenceX", rounds=10, requests=0, shortest=0.8, ttft="p50",
        source="github.com/SemiAnalysisAI/InferenceX, utils/bench_serving/benchmark_serving.py; 10 requests of each "
        "user, after 2 of each to warm up (benchmarks/benchmark_lib.sh)",
    ),
    "vllm": Client(
        "vllm bench serve", rounds=0, requests=1000, shortest=1.0, ttft="mean",
        source="github.com/vllm-project/vllm, vllm/benchmarks: defaults num_prompts 1000, random_range_ratio 0",
    ),
    "sglang": Client(
        "sglang.bench_serving", rounds=0, requests=1000, shortest=0.0, ttft="mean",
        source="github.com/sgl-project/sglang, python/sglang/bench_serving.py: defaults num_prompts 1000, "
        "random_range_ratio 0, which is the shortest length over the longest",
    ),
}  # fmt: skip


def find_client(name: str) -> Client:
    """Returns a client.

    Raises InputError, with the nearest names, if it is unknown.
    """
    if name not in CLIENTS:
        raise InputError(f"no client {name!r}; {suggest(name, CLIENTS)}")
    return CLIENTS[name]


def client_length(client: Client, value: int | str | None, name: str, default: str) -> str:
    """Lengths that a client draws for the whole number that it is given.

    Raises InputError for lengths that are none.
    """
    text = default if value is None else str(value)
    if not text.isdecimal() or not int(text):
        raise InputError(
            f"{name} must be a whole number of tokens with client, as {client.title} draws the lengths; got {text!r}"
        )
    return client.lengths(int(text))
