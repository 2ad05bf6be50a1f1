"""Start-ups of servers in public logs (server_startups.csv), and their expected capacities.

Columns are options of a setting and what was logged: tokens of the KV cache of a rank, or its size where tokens were
not logged. `half` says whether rules of engines/ were developed on a row, or it was held out: sources, not rows, were
divided before anyone looked, and the other half was scored once. `unknown` is what the log leaves out.
"""

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

from llmviewer import Setting, capacity
from llmviewer.server_memory import Capacity

PATH = Path(__file__).with_name("server_startups.csv")
DEVELOPED, HELD_OUT = "developed on", "held out"
NUMBERS = {"memory_fraction": float, "max_model_len": int, "max_num_batched_tokens": int, "max_num_seqs": int}


class Startup(NamedTuple):
    """A row, and what is expected of it."""

    row: dict[str, str]
    expected: Capacity

    @property
    def ratio(self) -> float | None:
        """Expected over logged tokens of the KV cache, or bytes where tokens were not logged."""
        if self.row["kv_capacity_tokens"]:
            return self.expected.kv_capacity_tokens / int(self.row["kv_capacity_tokens"])
        return self.expected.pool_bytes / 2**30 / float(self.row["kv_gib"]) if self.row["kv_gib"] else None

    @property
    def starts(self) -> bool:
        """Whether it did start."""
        return self.row["starts"] == "yes"


def rows() -> list[dict[str, str]]:
    with PATH.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def startups() -> tuple[Startup, ...]:
    """All rows."""
    return tuple(Startup(row, expected(row)) for row in rows())


def expected(row: dict[str, str]) -> Capacity:
    """The capacity of the server of a row."""
    options = {name: kind(row[name]) for name, kind in NUMBERS.items() if row[name]}
    setting = Setting.of(
        row["model"], row["hardware"], engine=row["engine"], engine_version=row["engine_version"],
        quant=row["quant"] or None, tp=int(row["tp"]), pp=int(row["pp"]), **options,
    )  # fmt: skip
    return capacity(setting)
