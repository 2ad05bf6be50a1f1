"""Options of requests over time: how they arrive, what each asks for, and the servers. Each is declared once.

Declared as the options of a setting are (llmviewer/options.py): the signatures of simulate(), max_throughput() and
concurrency_sweep(), the command line and docs/options.md are made from them. Each group is one concept, which the
function that reads it takes. Imports nothing heavy.
"""
# No `from __future__ import annotations`: declarations are read at run time, and heavy types are quoted.

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

from ..options import PriceOptions, ServedOptions, TargetOptions, TransferOptions
from ..parameters import MAX_SEQUENCES, Parameter

if TYPE_CHECKING:
    from pathlib import Path

    from ..devices.hardware import Hardware
    from ..parallel.layout import Layout
    from .task_files import Task

_REQUESTS: Final = Parameter(
    about="Number of requests; with --arrivals the first of the file.",
    more="If not given, 1000, and at least 10 of each client. Sessions are drawn until they have as many.",
    least=1,
    metavar="N",
)
_SEED: Final = Parameter(about="Seed of random arrivals, lengths and accepted tokens.", default=0, least=0, metavar="N")
_POLICY: Final = Parameter(
    about="Scheduling policy: static, decode-first, prefill-first, prefill-chunks, fcfs or chunked; with :TOKENS as "
    "token budget per step.",
    more="With ,hold=STEPS, dp ranks wait up to STEPS steps for each other's prefills; with ,hold=STEPS,fill=SHARE, "
    "prompts wait as long to fill that share of the budget. ,order=sjf, srpt, mlfq or vtc admits the shortest output "
    "first (,bins=N predicts it), by feedback queues or by fair shares of tenants. If not given, the engine's, or "
    "chunked:512.",
    metavar="POLICY",
)
_MAX_BATCH: Final = Parameter(
    about="Maximum running sequences per replica, or per dp rank, if KV memory allows.",
    more="If not given, the engine's, or 256, and at least --concurrency.",
    least=1,
    most=MAX_SEQUENCES,
    metavar="N",
)
_BLOCK: Final = Parameter(
    about="Tokens per KV block.", more="If not given, the engine's, or 16.", least=1, metavar="TOKENS"
)


class ArrivalOptions(TypedDict, total=False):
    """Arrivals of requests: at random, of a trace, or of users in a closed loop. Exactly one is given."""

    rate: Annotated[
        "float | None",
        Parameter(about="Mean arrival rate in req/s (Poisson arrivals).", unit="req/s", metavar="R"),
    ]
    arrivals: Annotated[
        "str | Path | None",
        Parameter(
            about="In place of --rate and lengths, a trace: a CSV file with columns timestamp, prompt, gen and "
            "optionally cached (prefix-cache hits in tokens), session and tenant, or those of Azure's traces or "
            "BurstGPT; or a .jsonl file like Mooncake's.",
            metavar="FILE",
        ),
    ]
    concurrency: Annotated[
        "int | None",
        Parameter(
            about="In place of --rate, a closed loop: number of clients that each send the next request when theirs "
            "finishes, as server benchmarks do.",
            least=1,
            metavar="N",
        ),
    ]


class DrawnLengthOptions(TypedDict, total=False):
    """Distributions of the tokens of each request."""

    prompt_lengths: Annotated[
        "int | str | None",
        Parameter(
            about="Input tokens: 512, uniform:100-900, lognormal:mean=512,p95=1536 (or two of p50, p90, p95, p99), a "
            "data set (sharegpt4, arxiv, lmsys-chat or translation), or a file with one length per line.",
            more="If not given, 1024.",
            unit="tokens",
            flag="--prompt-lengths --prompt",
            metavar="LENGTHS",
        ),
    ]
    gen_lengths: Annotated[
        "int | str | None",
        Parameter(
            about="Output tokens, likewise.",
            more="If not given, 128.",
            unit="tokens",
            flag="--gen-lengths --gen",
            metavar="LENGTHS",
        ),
    ]


class SenderOptions(TypedDict, total=False):
    """Senders of requests: the client of a benchmark, and tenants."""

    client: Annotated[
        "str | None",
        Parameter(
            about="With --concurrency, the requests of a benchmark client, inferencex, vllm (vllm bench serve) or "
            "sglang (sglang.bench_serving): their number, and lengths that it draws for the numbers of --prompt and "
            "--gen.",
            metavar="NAME",
        ),
    ]
    tenants: Annotated[
        "str | None",
        Parameter(
            about="Shares of the requests that each tenant sends at random, such as 1,2; with --arrivals a column "
            "tenant names them.",
            metavar="SHARES",
        ),
    ]


class CallOptions(TypedDict, total=False):
    """Requests that follow from others: the turns of a session, or the calls of an agent's task."""

    session_turns: Annotated[
        "int | str | None",
        Parameter(
            about="Turns of a session, a number or as for --prompt: each repeats the conversation before it, and "
            "--prompt is its new input.",
            more="--rate is of sessions, --concurrency of users with one session each.",
            metavar="N",
        ),
    ]
    think_time: Annotated[
        "float | str | None",
        Parameter(
            about="With --session-turns, time from an answer to the next turn: 10, '500 ms', '2 min', "
            "exponential:MEAN or uniform:LEAST-MOST.",
            more="If not given, 0.",
            unit="s",
            metavar="TIME",
        ),
    ]
    system_prompt: Annotated[
        "int | None",
        Parameter(
            about="With --session-turns, input tokens with which every session begins.",
            more="If not given, 0.",
            unit="tokens",
            least=0,
            metavar="TOKENS",
        ),
    ]
    tasks: Annotated[
        "str | Path | Task | None",
        Parameter(
            about="In place of lengths, a YAML file with the calls of an agent's task: lengths, dependencies, "
            "branches, loops and waits for tools.",
            more="--rate is of tasks, --concurrency of tasks in progress.",
            metavar="FILE",
        ),
    ]


class SampleOptions(TypedDict, total=False):
    """The simulated requests."""

    requests: Annotated["int | None", _REQUESTS]
    seed: Annotated[int, _SEED]


class OfferedRequestOptions(DrawnLengthOptions, SenderOptions, CallOptions, SampleOptions, total=False):
    """The requests: their tokens, who sends them, which follow from others, and how many."""


class TrafficOptions(ArrivalOptions, OfferedRequestOptions, total=False):
    """Requests over time: when they arrive, and what they are."""


class SchedulingOptions(TypedDict, total=False):
    """The scheduler of a server."""

    policy: Annotated["str | None", _POLICY]
    max_batch: Annotated["int | None", _MAX_BATCH]
    block: Annotated["int | None", _BLOCK]


class ReplicaOptions(TypedDict, total=False):
    """Replicas of the model."""

    replicas: Annotated[
        int, Parameter(about="Replicas of the model, each on the devices of the layout.", default=1, least=1,
                       metavar="N")
    ]  # fmt: skip


class RouterOptions(TypedDict, total=False):
    """The choice of a replica for a request."""

    router: Annotated[
        "str | None",
        Parameter(
            about="Which replica serves a request: round-robin, least-loaded, least-kv, prefix-aware or session.",
            more="If not given, round-robin.",
            metavar="NAME",
        ),
    ]


class FleetRuleOptions(TypedDict, total=False):
    """Changes of a fleet while it serves: failures, spot pre-emptions and autoscaling."""

    mtbf: Annotated[
        "float | str | None",
        Parameter(
            about="Mean time between failures of a replica, or between spot pre-emptions of it (exponential), such as "
            "'1 h'.",
            more="Another starts in its place.",
            unit="s",
            metavar="TIME",
        ),
    ]
    notice: Annotated[
        "float | str | None",
        Parameter(
            about="With --mtbf, time from the notice of a failure, after which the replica gets no new requests, to "
            "the failure: 30 to 120 for spot instances.",
            more="If not given, 0.",
            unit="s",
            metavar="TIME",
        ),
    ]
    recovery: Annotated[
        "str | None",
        Parameter(
            about="With --mtbf, how requests of a failed replica go on: fail; restart (from the prompt); recompute "
            "(prompt and output so far); migrate (KV caches travel within the notice, the rest is recomputed).",
            more="If not given, recompute.",
            metavar="WAY",
        ),
    ]
    autoscale: Annotated[
        "str | None",
        Parameter(
            about="In place of --replicas, their fewest and most, such as 1-8, by --scale-target.", metavar="MIN-MAX"
        ),
    ]
    scale_target: Annotated[
        "float | None",
        Parameter(
            about="With --autoscale, unfinished requests per replica above which replicas are added.",
            least=0,
            open=True,
            metavar="N",
        ),
    ]
    startup: Annotated[
        "float | str | None",
        Parameter(
            about="With --mtbf or --autoscale, time from the start of a replica until it serves requests.",
            more="If not given, that of reading the weights from the storage of its device.",
            unit="s",
            metavar="TIME",
        ),
    ]


class PrefillOptions(TransferOptions, total=False):
    """Replicas for prefills alone, and the transfer of their KV caches (disaggregation)."""

    prefill_replicas: Annotated[
        int,
        Parameter(
            about="Additional replicas for prefill only (disaggregation); the others then only decode.",
            default=0,
            least=0,
            metavar="N",
        ),
    ]
    prefill_hardware: Annotated[
        "str | Hardware | None",
        Parameter(about="Devices of the prefill replicas.", more="If not given, those of the others.",
                  metavar="HARDWARE"),
    ]  # fmt: skip
    prefill_layout: Annotated[
        "str | Layout | None",
        Parameter(
            about="Layout of each prefill replica, such as 'tp=4'.",
            more="If not given, that of the others.",
            metavar="DEGREES",
        ),
    ]


class ServingOptions(
    SchedulingOptions, ReplicaOptions, RouterOptions, FleetRuleOptions, PrefillOptions, TargetOptions, total=False
):
    """The servers: scheduler, replicas, how they change, replicas for prefills, and latency targets."""


class SimulationOptions(TrafficOptions, ServingOptions, total=False):
    """Requests over time, and the servers."""


class SimulationArguments(SimulationOptions, ServedOptions, PriceOptions, total=False):
    """Options of simulate(): requests over time, servers, and the setting of a replica."""


class LoadCurveArguments(OfferedRequestOptions, ServingOptions, ServedOptions, PriceOptions, total=False):
    """Options of concurrency_sweep(): those of simulate(), but for arrivals."""


class QueueSampleOptions(TypedDict, total=False):
    """Requests that are all queued at the start."""

    requests: Annotated[
        "int | None",
        replace(
            _REQUESTS,
            about="Number of requests per replica.",
            more="If not given, six times the concurrent sequences, and at least 1000.",
        ),
    ]
    seed: Annotated[int, _SEED]


class QueueSchedulingOptions(TypedDict, total=False):
    """The scheduler of a server at its maximum throughput."""

    policy: Annotated[
        "str | None",
        replace(_POLICY, more="If not given, the engine's, or chunks of the size with the highest throughput."),
    ]
    max_batch: Annotated[
        "int | None",
        replace(_MAX_BATCH, more="If not given, as many as fit, up to the engine's limit, or 2048."),
    ]
    block: Annotated["int | None", _BLOCK]


class SaturationArguments(
    DrawnLengthOptions, QueueSampleOptions, QueueSchedulingOptions, ReplicaOptions, ServedOptions, PriceOptions,
    total=False,
):  # fmt: skip
    """Options of max_throughput(): requests that are all queued at the start, servers and the setting of a replica."""
