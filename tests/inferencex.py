"""Results of InferenceX, a public benchmark of servers, and what is expected of them; docs/inferencex.md shows them.

inferencex.csv has them with the precision that was served. Where `decoding` is empty, the same devices read and write:
medians of the times of requests of which `concurrency` are in flight, and tokens read and written a second by each
device. Elsewhere others read the prompts, and so many sequences decode in each copy, by Little's law from its published
throughput and time per token. `drafted` are tokens that its prediction layer drafts before each pass.

deepseek-r1   packages/app/cypress/fixtures/api/benchmarks.json of github.com/SemiAnalysisAI/InferenceX-app, commit
              3a600f1d (Apache-2.0), without those whose layout it does not say; with drafts, where the same is there
              without, and scripts of the benchmark say how many
gpt-oss-120b  reconcile/by_model/openai_GPT-OSS-120B/inferencemax.csv of github.com/gminneci/mantile, commit 11a8e896:
              means, of runs of InferenceX named there; without seven settings that are there twice, with other times

TTFT is as the sources state it: medians of deepseek-r1, means of gpt-oss-120b. Nothing was developed on that of half of
the settings, by a hash of their names (`is_scored()`).

SGLang's prompts on B300 have more tokens for the server than for the client, whose tokenizer transformers 5 had
changed: 7,140 of the client were 35,921 (github.com/SemiAnalysisAI/InferenceX, pull 937; pull 1502 ran them again with
one tokenizer). Throughput counts those of the client.

The benchmark is as benchmarks/*.sh of github.com/SemiAnalysisAI/InferenceX run it, with its client. SGLang's chunks,
the decode steps after which it looks for requests, and memory fractions of all are those of its scripts (there and in
single_node/fixed_seq_len/: --chunked-prefill-size, --scheduler-recv-interval, --mem-fraction-static and others). The
checkpoints in 4 bits have projections of attention in 16 bits (nvidia's model card of DeepSeek-R1-0528-FP4-v2).
"""

import csv
from functools import partial
from hashlib import sha256
from math import nan
from pathlib import Path
from typing import NamedTuple

import numpy as np

from llmviewer import simulate
from llmviewer.analyzing.generation import GenerationResult
from llmviewer.setting import Setting
from llmviewer.variants.evaluation import Evaluation

_PARTS = "chunked:2048"
_CHUNKS = {"h200-sxm": 32768, "mi300x": 131072, "mi325x": 131072, "mi355x": 196608, "b200": 16384, "b300": 16384}
_POLLED = ("b200", "b300")  # SGLang looks for requests after 30 decode steps there, or 10 with few clients
_DELAYED = "fcfs:8192,hold=40,fill=0.8"  # batch_wait_timeout_iters, batch_wait_max_tokens_ratio
_LEAST = 0.8  # of a length
_RETOKENIZED = 35921 / 7140  # tokens of the server in one of the client, of SGLang's runs on B300
_FRACTIONS = {"vllm": 0.9, "tensorrt-llm": 0.85, "atom": None}  # of gpt-oss
_VERSION = (
    "0.13"  # of vLLM, of January 2026; the script of B200 sets fuse_allreduce_rms, which later ones do by default
)
with (Path(__file__).parent / "inferencex.csv").open() as lines:
    _EVERY = list(csv.DictReader(lines))
ROWS = [row for row in _EVERY if not row["drafted"]]
DRAFTED = [row for row in _EVERY if row["drafted"]]
_SAME = ("model", "device", "engine", "quant", "layout", "prompt", "gen", "concurrency")
_ALONE = {tuple(row[name] for name in _SAME): row for row in ROWS if not row["decoding"]}


class Found(NamedTuple):
    """A time over the measured one, at the bound and as expected.

    served  of a token of the throughput; of disaggregated servers, of a token that is written
    token   of a token that is written
    first   of the first token; nan of disaggregated servers
    """

    served: tuple[float, float]
    token: tuple[float, float]
    first: tuple[float, float] = (nan, nan)


def found(row) -> Found:
    """Simulated throughput of a result."""
    return _decoding(row) if row["decoding"] else _served(row)


def _asked(row):
    return {
        "quant": None if row["quant"] == "published" else row["quant"], "memory_fraction": memory_fraction(row),
        "engine": row["engine"], "layout": row["layout"],
        "engine_version": _VERSION if (early := row["engine"] == "vllm" and row["device"] != "b200") else "",
        "experts_kernel": "marlin" if early else "",  # VLLM_MXFP4_USE_MARLIN in the scripts of H100 and H200
    }  # fmt: skip


def _served(row) -> Found:
    clients = int(row["concurrency"])
    asked = {
        "concurrency": clients, "client": "inferencex", "max_batch": clients,
        "prompt_lengths": round(_retokenized(row) * int(row["prompt"])), "gen_lengths": int(row["gen"]), **_asked(row),
    }  # fmt: skip
    run = simulate(row["model"], row["device"], policy=policy(row), **asked)
    token_s, least = partial(_token_s, retokenized=_retokenized(row)), run
    if row["layout"].startswith("dp"):  # whose ranks wait for each other: less, where prompts are in smaller parts
        least = min((run, simulate(row["model"], row["device"], policy=_PARTS, **asked)), key=token_s)
    runs = (least, run.expected)
    served = (token_s(one) * float(row["tokens_per_s"]) for one in runs)
    first = (float(statistic(row)(one.ttft_s)) / float(row["ttft_s"]) for one in (run, run.expected))
    return Found(
        tuple(served), tuple(float(np.median(one.tpot_s)) / float(row["tpot_s"]) for one in runs), tuple(first)
    )


def statistic(row):
    """The statistic of TTFT that the source of a result states."""
    return np.mean if row["model"] == "gpt-oss-120b" else np.median


def policy(row):
    """The scheduling policy of a result; None for that of its engine."""
    if row["engine"] == "tensorrt-llm" and not row["layout"].startswith("dp"):
        return _DELAYED if _is_delayed(row) else "fcfs:20000" if row["model"] == "gpt-oss-120b" else None
    if row["engine"] != "sglang":
        return None
    tokens, few = _CHUNKS[row["device"]], int(row["concurrency"]) < 16
    if row["device"] == "b200" and "nvfp4" not in row["quant"]:
        tokens, few = (32768, few) if "tp=8" in row["layout"] else (8192, True)
    polled = f",poll={10 if few else 30}" if row["device"] in _POLLED else ""
    return f"prefill-chunks:{tokens}{polled}"


def _is_delayed(row):
    """Whether the script sets batch_wait_timeout_iters, so that prompts wait for others."""
    is_short = row["prompt"] == row["gen"] == "1024" and 64 <= int(row["concurrency"]) < 256
    return row["device"] == "b200" and "nvfp4" not in row["quant"] and row["model"] == "deepseek-r1" and is_short


def memory_fraction(row):
    """The memory fraction of a result's server."""
    if row["engine"] != "sglang":
        return _FRACTIONS[row["engine"]] if row["model"] == "gpt-oss-120b" else {"tensorrt-llm": 0.8}.get(row["engine"])
    if row["device"] == "b200" and "nvfp4" not in row["quant"]:
        return 0.82 if "tp=8" in row["layout"] else 0.95
    return 0.8 if row["device"].startswith("mi") else 0.82 if row["device"] == "h200-sxm" else 0.85


def is_former(row):
    """Whether a result is of a version of SGLang in which prompts took longer: 0.5.3 with --enable-symm-mem, before
    its pull 12524. That of InferenceX's dsr1-fp4-b200-sglang until November 2025 was v0.5.3rc1.
    """
    return row["engine"] == "sglang" and row["device"] == "b200" and row["date"] < "2025-11-18"


def is_scored(row):
    """Whether nothing was developed on the TTFT of a result, of which half of the settings are."""
    names = ("model", "device", "engine", "quant", "layout", "prompt", "gen")
    return sha256(",".join(row[name] for name in names).encode()).digest()[-1] % 2 == 1


def _retokenized(row):
    """Tokens of a prompt for the server in one for the client, by which a result counts them."""
    return _RETOKENIZED if (row["engine"], row["device"]) == ("sglang", "b300") else 1.0


def _token_s(run, retokenized):
    """Time of an input or output token, as the client counts them, on each device. [s]"""
    return run.span_s * run.devices / float(np.sum(run.traffic.prompt / retokenized + run.traffic.gen))


def _decoding(row) -> Found:
    answer = _answer(row, batch=int(row["decoding"]))
    steps = tuple(time_s / float(row["tpot_s"]) for time_s in (answer.tpot_s, answer.expected_tpot_s))
    return Found(steps, steps)


def _answer(row, *, batch, techniques=()):
    setting = Setting.of(row["model"], row["device"], techniques=techniques, **_asked(row))
    prompt, gen = ((_LEAST + 1) / 2 * int(row[name]) for name in ("prompt", "gen"))
    prompt, gen = round(_retokenized(row) * prompt), round(gen)
    return GenerationResult.of(Evaluation(setting=setting, batch=batch, prompt=prompt, gen=gen))


class Drafts(NamedTuple):
    """A result with drafts beside that without.

    sooner   time per token without over that with them, as measured
    longer   expected time of a pass that drafts and verifies, over one that does not
    """

    sooner: float
    longer: float

    @property
    def tokens(self) -> float:
        """Tokens that a pass has to leave for both to hold."""
        return self.sooner * self.longer


def drafts(row) -> Drafts:
    """Speculative decoding of a result, as its fields state it."""
    alone = _ALONE[tuple(row[name] for name in _SAME)]
    batch = int(row["concurrency"])
    passes = [_answer(row, batch=batch, techniques=used) for used in ((), [f"mtp:gamma={row['drafted']},tau=1"])]
    plain, drafted = (one.expected_tpot_s for one in passes)
    return Drafts(float(alone["tpot_s"]) / float(row["tpot_s"]), drafted / plain)
