"""Load test of the dashboard: `python benchmarks/page_load.py [--users 50] [--seconds 60] [--workers 2] [--check]`.

Starts gunicorn as docs/web.md does. Each user opens the page, then changes the batch of a dense model again and again,
after a random time that is THINK_S in the mean, and waits for the new numbers and the figures of the overview. Prints
the times from a change to its numbers, CPU time, wrong answers (TPOT other than analyze() has), failed requests, and
the memory of the largest worker. --check exits with 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from llmviewer.analyzing.analysis import analyze
from llmviewer.units import seconds
from llmviewer.webapp.app import create

P99_LIMIT_S = 3.0
MEMORY_LIMIT_MB = 250.0
THINK_S = 5.0
_MODEL, _DEVICE = "llama-3.1-8b", "h100-sxm"
_UPDATE = "/_dash-update-component"


@dataclass
class Measured:
    """Times, wrong answers and failed requests of all users.

    times_s  from a change to its numbers [s]
    """

    times_s: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


class User:
    """A browser of the page: values of its components, and requests for what depends on them."""

    def __init__(self, port: int, callbacks: Mapping[str, Any]) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.callbacks = callbacks
        self.values: dict[tuple[str, str], Any] = {}

    def open(self) -> None:
        """Loads the page and its first results."""
        for path in ("/", "/_dash-dependencies"):
            self._text("GET", path)
        self._collect(json.loads(self._text("GET", "/_dash-layout")))
        self.values["url", "search"] = ""
        self._ask("link.data", "url.search")
        self._ask("answer.children", "asked.data")

    def change(self, batch: int) -> str:
        """Changes the batch; the new numbers as text."""
        self.values["batch", "value"] = batch
        self._ask("link.data", "batch.value")
        return self._ask("answer.children", "asked.data")

    def draw(self) -> None:
        """Asks for the figures of the overview."""
        self._ask("content.children", "asked.data")

    def _collect(self, part: Any) -> None:
        if isinstance(part, dict):
            props = part.get("props") or {}
            if isinstance(props.get("id"), str):
                self.values |= {(props["id"], name): value for name, value in props.items()}
            for inner in part.values():
                self._collect(inner)
        elif isinstance(part, list):
            for inner in part:
                self._collect(inner)

    def _ask(self, output: str, changed: str) -> str:
        """The answer for the callback that has `output`, whose values the page then has."""
        key, callback = next((key, one) for key, one in self.callbacks.items() if output in key)
        parts = [part.rpartition(".") for part in key.strip(".").split("...")]
        outputs = [{"id": name, "property": prop} for name, _, prop in parts]
        spec_values = [
            [{**spec, "value": self.values.get((spec["id"], spec["property"]))} for spec in callback[kind]]
            for kind in ("inputs", "state")
        ]
        body = {
            "output": key, "outputs": outputs if key.startswith("..") else outputs[0], "inputs": spec_values[0],
            "state": spec_values[1], "changedPropIds": [changed],
        }  # fmt: skip
        text = self._text("POST", _UPDATE, json.dumps(body))
        if text:
            for name, props in json.loads(text)["response"].items():
                self.values |= {(name, prop): value for prop, value in props.items()}
        return text

    def _text(self, method: str, path: str, body: str | None = None) -> str:
        self.connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = self.connection.getresponse()
        text = response.read().decode()
        if response.status not in (200, 204):
            raise OSError(f"{method} {path}: status {response.status} {text[:200]}")
        return text


def main() -> int:
    """Prints what users saw; 1 if a limit is missed with --check."""
    options = _options()
    callbacks = {key: one for key, one in create().callback_map.items() if "callback" in one}
    batches = range(1, 65)
    texts = {batch: seconds(analyze(_MODEL, _DEVICE, batch=batch).generation.tpot_s) for batch in batches}
    measured = Measured()
    with _served(options.workers) as (port, server):
        until = time.monotonic() + options.seconds
        threads = [
            threading.Thread(target=_use, args=(User(port, callbacks), random.Random(seed), texts, until, measured))  # noqa: S311
            for seed in range(options.users)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        workers = _children(server.pid)
        memory_mb, cpu_s = max(map(_memory_mb, workers)), sum(map(_cpu_s, workers))
    if not measured.times_s:
        print(f"no change was answered: {measured.failed[:1]}")
        return 1
    p50, p99 = np.percentile(measured.times_s, [50, 99])
    print(
        f"{options.users} users on {options.workers} workers for {options.seconds} s: {len(measured.times_s)} changes"
    )
    print(f"from a change to its numbers: p50 {p50:.2f} s, p99 {p99:.2f} s (limit {P99_LIMIT_S:g} s)")
    print(f"CPU time of the workers per change, with the pages opened: {1e3 * cpu_s / len(measured.times_s):.0f} ms")
    print(f"wrong answers {len(measured.wrong)}, failed requests {len(measured.failed)}")
    print(f"memory of the largest worker {memory_mb:.0f} MB (limit {MEMORY_LIMIT_MB:g} MB)")
    for line in (*measured.wrong[:3], *measured.failed[:3]):
        print(f"  {line}")
    is_missed = p99 > P99_LIMIT_S or measured.wrong or measured.failed or memory_mb > MEMORY_LIMIT_MB
    return 1 if is_missed and options.check else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("--users", 50), ("--seconds", 60), ("--workers", 2)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


def _use(user: User, rng: random.Random, texts: Mapping[int, str], until: float, measured: Measured) -> None:
    """Opens the page, then changes the batch until a time of time.monotonic()."""
    try:
        time.sleep(rng.uniform(0, THINK_S))
        user.open()
        batch = 1
        while time.monotonic() < until:
            user.connection.close()  # as the server does after some seconds
            time.sleep(rng.expovariate(1 / THINK_S))
            batch = rng.choice([one for one in texts if one != batch])
            start = time.monotonic()
            answer = user.change(batch)
            measured.times_s.append(time.monotonic() - start)
            if f'"{texts[batch]}"' not in answer:
                measured.wrong.append(f"batch {batch}: TPOT {texts[batch]} is not in the answer")
            user.draw()
    except (OSError, http.client.HTTPException, ValueError) as error:
        measured.failed.append(repr(error)[:300])


@contextmanager
def _served(workers: int) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The port and the process of a server that answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "gunicorn", "--worker-class", "gthread", "--workers", str(workers), "--threads", "4",
        "--timeout", "30", "--log-level", "error", "--bind", f"127.0.0.1:{port}", "llmviewer.webapp.wsgi:server",
    ]  # fmt: skip
    server = subprocess.Popen(command)
    try:
        for _ in range(240):
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    break
            except OSError:
                time.sleep(0.5)
        yield port, server
    finally:
        server.terminate()
        server.wait()


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    return [int(one) for one in text.split()]


def _cpu_s(pid: int) -> float:
    """CPU time of a process. [s]"""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(pid: int) -> float:
    """Memory of a process that no other shares, and its part of the rest (PSS). [MB]"""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


if __name__ == "__main__":
    raise SystemExit(main())
