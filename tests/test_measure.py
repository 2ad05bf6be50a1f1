"""Choice and repetition of measured launches, files on the disk, and the whole loop on this machine's CPU."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import inf
from time import monotonic, process_time, sleep
from types import MappingProxyType
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest

from llmviewer.cli import main
from llmviewer.devices.files import load_hardware
from llmviewer.errors import InputError
from llmviewer.expectation.device import device_of
from llmviewer.expectation.rows import read
from llmviewer.measuring import backend as backend_module
from llmviewer.measuring import ceilings as ceilings_module
from llmviewer.measuring import machine as machine_module
from llmviewer.measuring import session as session_module
from llmviewer.measuring import timing
from llmviewer.measuring.backend import LaunchError, Sets, breaks
from llmviewer.measuring.ceilings import Ceiling, _product, disturbed_rates, rates, sizes
from llmviewer.measuring.journal import Journal
from llmviewer.measuring.machine import MachineState, Watch, gpu_name, with_rates
from llmviewer.measuring.order import spread
from llmviewer.measuring.problems import problems
from llmviewer.measuring.session import Machine, Session, header, select_problems
from llmviewer.measuring.summary import ceilings_text, goals, goals_text, kernels_text
from llmviewer.measuring.timing import BusyError, HungError, TimingSample, settled
from llmviewer.units import counted

from .fake_cuda import Cuda

H200 = load_hardware("h200")
MACHINE = Machine(
    name="h200-sxm", hardware="h200-sxm", title="NVIDIA H200", kind="gpu", cache=50e6, memory=100e9, driver="1"
)
CEILINGS = (
    Ceiling(what="copy", size=2**30, value=4.2e12, unit="B/s"),
    Ceiling(what="copy", size=2**20, value=9.9e12, unit="B/s"),
    Ceiling(what="matrix bf16", size=8192, value=7e14, unit="OP/s"),
    Ceiling(what="matrix bf16", size=4096, value=6e14, unit="OP/s"),
    Ceiling(what="host to device", size=2**28, value=5e10, unit="B/s"),
    Ceiling(what="launch", size=0, value=4e-6, unit="s"),
)


class Clock:
    """A launch takes what it returns."""

    def sampler(self, calls):
        turn = count()
        return lambda: TimingSample(calls[next(turn) % len(calls)]())

    def wait(self):
        pass


@dataclass(frozen=True)
class Tiling:
    keys: int
    splits: int


class Library:
    """Solves every problem in twice its bound and records the problems solved."""

    framework, version, clock = "mine", "1.0", Clock()
    versions = MappingProxyType({"mine": "1.0"})

    def __init__(self, wrong=(), breaks_at=None):
        self.wrong, self.breaks_at, self.asked, self.checked = wrong, breaks_at, [], []

    def own(self):
        return ()

    def kernels(self, problem):
        return ("fast",)

    def check(self, problem, kernel):
        self.checked.append(problem.kind)
        if problem.op in self.wrong:
            raise LaunchError("differs from its reference")

    def tilings(self, problem, kernel):
        return ()

    def room(self, problem, kernel, memory):
        return int(memory / problem.kept)

    def calls(self, problem, kernel, sets, tiling=None):
        if len(self.asked) == self.breaks_at:
            raise KeyboardInterrupt
        self.asked.append(problem)
        return [lambda: 2 * problem.bound(device_of(H200)) + 1e-6] * sets

    def finite(self, outputs):
        return np.isfinite(outputs)


def session(folder, library, seconds=60.0):
    journal = Journal(folder, header(MACHINE, [library]))
    if not journal.complete:
        for one in CEILINGS:
            journal.ceiling(one)
        journal.ceilings_complete()
    return Session(machine=MACHINE, backends=[library], journal=journal, seconds=seconds)


def run(folder, library, families=("gemm",), models=("qwen3-0.6b",), seconds=60.0):
    asked = select_problems([library], models, families, ("bf16",))  # before its time begins
    found = session(folder, library, seconds)
    found.measure_kernels(asked, lambda _: None)
    return found


def test_the_first_shapes_are_corners_and_the_next_lie_between():
    grid = [(m, n) for m in (1, 4, 16, 64, 256) for n in (64, 256, 1024)]
    order = spread(grid)
    assert sorted(order) == list(range(len(grid)))
    first = [grid[i] for i in order[:4]]
    assert first[:2] == [(1, 64), (256, 1024)]
    assert set(first[2:]) == {(1, 1024), (256, 64)}
    assert 16 in {grid[i][0] for i in order[4:6]}


def test_shapes_that_differ_in_one_size_only_can_be_ordered():
    assert spread([(8, 1), (8, 2), (8, 4)]) == [0, 2, 1]


def test_repetitions_end_when_the_median_is_settled(monkeypatch):
    ticks = count()
    monkeypatch.setattr(timing, "monotonic", lambda: 1e-4 * next(ticks))
    assert settled(lambda: TimingSample(1e-5), 10.0).repeats == 8  # too few at 4 to know
    noisy = count()
    found = settled(lambda: TimingSample(1e-5 * (1 + next(noisy) % 2)), 0.02)
    assert found.repeats > 100
    assert (found.p20, found.p80) == pytest.approx((1e-5, 2e-5))


def test_disturbed_launches_do_not_count():
    turn = count()
    found = settled(lambda: TimingSample(9.0, disturbed=True) if next(turn) % 2 else TimingSample(1e-5), 1.0)
    assert found.median == 1e-5
    assert found.disturbed == pytest.approx(0.5, abs=0.1)
    with pytest.raises(BusyError, match="other programs use the cores"):
        settled(lambda: TimingSample(1e-5, disturbed=True), 0.01)


def test_disturbed_ceiling_launches_are_repeated_and_flagged_if_all_are_disturbed(monkeypatch):
    ticks, launches = count(), count()
    monkeypatch.setattr(timing, "monotonic", lambda: 1e-3 * next(ticks))

    def late():
        return TimingSample(9.0, disturbed=True) if next(launches) < 50 else TimingSample(1e-5)

    assert timing.fastest(late, 0.03) == TimingSample(1e-5)
    assert timing.fastest(lambda: TimingSample(1e-5, disturbed=True), 0.005) == TimingSample(1e-5, disturbed=True)


def test_disturbed_ceilings_are_reported_and_measured_again(tmp_path):
    pytest.importorskip("torch")
    busy = True

    class Host(Clock):
        def sampler(self, calls):
            spoilt = busy and getattr(calls[0], "__name__", "") == "sum"
            return lambda: TimingSample(3e-3 if spoilt else 1e-3, disturbed=spoilt)

    library = Library()
    library.clock = Host()
    found = Session(
        machine=replace(MACHINE, kind="cpu", cache=1e5), backends=[library],
        journal=Journal(tmp_path, header(MACHINE, [library])), seconds=1e-6,
    )  # fmt: skip
    found.measure_ceilings(lambda what: None)
    first = found.journal.ceilings
    text = ceilings_text(first, {}, {})
    assert re.search(r"over 64 KiB +0.0218\? +0.0655 +0.0655 +0.0655\n", text)
    assert "? disturbed by other programs in every repetition" in text
    assert max(map(len, text.splitlines())) <= 80
    busy = False
    again = replace(found, journal=Journal(tmp_path, header(MACHINE, [library])))
    again.measure_ceilings(lambda what: None)
    added = again.journal.ceilings[len(first) :]
    assert {one.what for one in added} == {"read"}
    text = ceilings_text(again.journal.ceilings, {}, {})
    assert "?" not in text
    assert re.search(r"over 64 KiB +0.0655 +0.0655 ", text)
    again.measure_ceilings(lambda what: pytest.fail("all are known"))


def test_preempted_launch_is_marked_as_disturbed(monkeypatch):
    interruptions = count()
    monkeypatch.setattr(timing, "_interruptions", lambda: next(interruptions))
    assert timing.HostClock().sampler([lambda: None])().disturbed
    monkeypatch.setattr(timing, "_interruptions", lambda: 7)
    assert not timing.HostClock().sampler([lambda: sum(range(1000))])().disturbed
    assert timing.HostClock().sampler([lambda: sleep(0.01)])().disturbed  # as one that waits for a core


@pytest.mark.parametrize("seconds", [3e-6, 1e-4, 2e-3])
@pytest.mark.parametrize("sets", [1, 5, 256])
def test_the_host_is_no_part_of_the_time_of_a_launch_on_a_gpu(seconds, sets, monkeypatch):
    cuda = Cuda()
    monkeypatch.setattr("torch.cuda", cuda)
    sample = timing.GpuClock().sampler([partial(cuda.launch, seconds)] * sets)
    assert [sample().seconds for _ in range(3)] == pytest.approx([seconds] * 3, rel=1e-6)


@pytest.mark.parametrize(("seconds", "before"), [(4e-5, 0), (1e-4, 0.2), (2e-3, 0.2), (0.5, 0.5)])
def test_long_launches_are_timed_when_the_gpu_is_hot_and_several_at_once(seconds, before, monkeypatch):
    cuda = Cuda()
    monkeypatch.setattr("torch.cuda", cuda)
    sample = timing.GpuClock().sampler([partial(cuda.launch, seconds)])
    assert before <= cuda.gpu < before + 0.02 + 7 * max(seconds, 1e-3)
    sample()
    start = cuda.gpu
    sample()
    assert cuda.gpu - start >= min(32 * seconds, 0.02)


@pytest.mark.parametrize(
    ("nbytes", "wanted"),
    [(100e6, Sets(count=4, loop=0)), (1e9, Sets(count=1, loop=0)), (10e3, Sets(count=256, loop=256)),
     (500e3, Sets(count=25, loop=25))],
)  # fmt: skip
def test_tensors_come_from_memory_or_all_of_them_from_the_cache(nbytes, wanted):
    found = Sets.of(nbytes, cache=50e6, max_sets=int(30e9 / nbytes))
    assert found == wanted
    assert found.loop * nbytes <= 50e6 / 4
    assert found.loop or found.count * nbytes >= 4 * 50e6


def test_questions_are_the_operators_of_the_model():
    found = problems(["llama-3.1-8b"], ["bf16"])
    assert len(set(found)) == len(found)
    assert {(q["N"], q["K"]) for q in found if q.family == "gemm"} == {
        (4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (128256, 4096),
    }  # fmt: skip
    heads = {tuple(q[n] for n in ("q_heads", "kv_heads", "head_dim")) for q in found if q.family.startswith("att")}
    assert heads == {(32, 8, 128)}
    assert {q.op for q in found if q.family == "elementwise"} >= {"norm", "add", "activation", "rope", "embedding"}
    assert {q["cols"] for q in found if q.op == "activation"} == {14336}


def test_questions_of_experts_latent_attention_and_windows():
    found = problems(["deepseek-v2-lite", "gemma-3-12b"], ["bf16"])
    experts = {tuple(q[n] for n in ("hidden", "inter", "topk", "experts", "gated")) for q in found if q.family == "moe"}
    assert experts == {(2048, 1408, 6, 64, 1)}
    dense = {(q["M"], q["N"], q["K"]) for q in found if q.op == "dense_experts"}  # rows of each expert, through all
    assert dense == {
        (m, *sizes) for m in (6, 12, 24, 48, 96, 192, 384, 768) for sizes in ((64 * 2816, 2048), (64 * 2048, 1408))
    }
    latent = {(q.op, q["head_dim"], q["v_head_dim"], q["kv_heads"]) for q in found if q.op.startswith("mla")}
    assert latent == {("mla_absorb", 576, 512, 1), ("mla_unabsorbed", 192, 128, 16)}
    assert {q["window"] for q in found if q.op == "gqa"} == {0, 1024}


def test_questions_of_states_and_of_tokens_sent_to_experts():
    found = problems(["qwen3-next-80b-a3b", "nemotron-nano-9b-v2", "kimi-linear-48b-a3b"], ["bf16"])
    heads = {
        (q.op, *(dict(q.sizes).get(n, 0) for n in ("k_heads", "k_dim", "v_heads", "v_dim", "chunk", "channels")))
        for q in found
        if q.family == "scan"
    }
    assert heads == {
        ("gdn_scan_prefill", 16, 128, 32, 128, 64, 0), ("delta_scan_step", 16, 128, 32, 128, 1, 0),
        ("mamba2_scan_prefill", 8, 128, 128, 80, 128, 0), ("mamba2_scan_step", 8, 128, 128, 80, 1, 0),
        ("kda_scan_prefill", 32, 128, 32, 128, 64, 1), ("delta_scan_step", 32, 128, 32, 128, 1, 1),
    }  # fmt: skip
    permutes = {tuple(q[n] for n in ("cols", "topk", "experts")) for q in found if q.op == "permute"}
    assert permutes == {(2048, 10, 512), (2304, 8, 256)}
    step = next(q for q in found if q.op == "delta_scan_step" and q["batch"] == 8 and q["v_heads"] == 32)
    assert step.nbytes == 8 * (2 * (2 * 16 * 128 + 2 * 32 * 128) + 2 * 4 * 32 * 128 * 128)
    combine = next(q for q in found if q.op == "combine" and q["rows"] == 16 and q["topk"] == 10)
    assert combine.nbytes == 16 * 2048 * (10 + 1) * 2
    assert combine.row["bytes"] == combine.nbytes


def test_questions_of_quantized_weights_are_matrix_products():
    found = problems(["qwen3-30b-a3b"], ["int4_wo"])
    assert {q.family for q in found} == {"gemm", "moe"}


def test_requested_type_without_a_kernel_is_refused():
    library = Library()
    library.kernels = lambda problem: ("fast",) if problem.dtype == "bf16" else ()
    few = select_problems([library], ["qwen3-0.6b"], ["gemm"], ["bf16", "fp8"])
    assert {q.dtype for q in few} == {"bf16"}
    with pytest.raises(InputError, match=r"^mine: no kernel of gemm in fp8 at shapes of qwen3-0.6b$"):
        select_problems([library], ["qwen3-0.6b"], ["gemm"], ["bf16", "fp8"], every=True)


def test_bytes_and_bounds_by_hand():
    found = problems(["deepseek-v2-lite", "llama-3.1-8b"], ["bf16"])
    device = device_of(H200)

    def one(family, **sizes):
        return next(q for q in found if q.family == family and all(dict(q.sizes).get(n) == v for n, v in sizes.items()))

    gemm = one("gemm", M=1, N=14336, K=4096)
    assert gemm.nbytes == 2 * (14336 * 4096 + 4096 + 14336)
    assert gemm.bound(device) == pytest.approx(gemm.nbytes / 4.8e12)
    decode = one("attention_decode", batch=4, kv_len=1024, q_heads=32)
    assert decode.nbytes == 4 * (2 * 32 * 128 * 2 + 1024 * 8 * 2 * 128 * 2)
    latent = one("attention_decode", batch=4, kv_len=1024, q_heads=16)
    assert latent.nbytes == 4 * (16 * (576 + 512) * 2 + 1024 * 576 * 2)
    prefill = one("attention_prefill", batch=1, q_len=8192, q_heads=32)
    ops = 4 * 32 * 128 * 8192 * 8193 / 2
    assert prefill.bound(device) == pytest.approx(ops / (989.4e12 * 1980 / 1830), rel=0.01)
    norm = one("elementwise", rows=16, cols=4096)
    assert norm.nbytes == 2 * 16 * 4096 * 2
    experts = one("moe", tokens=4)
    reached = 64 * (1 - (58 / 64) ** 4)  # 4 tokens choose 6 of 64 each, at random
    assert experts.row["reached"] == round(reached, 1) == 20.8
    found_bytes = tuple(int(3 * n * 2048 * 1408 * 2 + 4 * 4 * 2048) for n in (reached, 64))
    assert (experts.nbytes, experts.kept) == found_bytes
    found = problems(["gemma-3-12b"], ["bf16"])
    window = one("attention_decode", batch=4, kv_len=8192, window=1024)
    assert (window.nbytes, window.kept) == tuple(4 * (2 * 16 * 256 * 2 + n * 8 * 2 * 256 * 2) for n in (1024, 8192))


def test_rows_have_the_documented_columns_of_every_family(tmp_path):
    found = run(tmp_path / "m", Library(), ("gemm", "attention_prefill", "attention_decode", "moe", "elementwise"),
                ("deepseek-v2-lite",), seconds=3)  # fmt: skip
    for path in found.journal.tables(".parquet"):
        table = read(path)
        rows = sum(map(len, table.rows))
        assert rows == len(table.frame) > 5, table.unread
        assert {(group.family.name, group.device.name) for group in table.rows} == {(path.stem, "h200-sxm")}
        for group in table.rows:
            assert (group.measured > group.family.bound(group.shapes, group.device, group.implementation)).all()
    assert {path.stem for path in (tmp_path / "m").glob("*.parquet")} == {
        "gemm", "attention_prefill", "attention_decode", "moe", "elementwise",
    }  # fmt: skip
    row = found.journal.rows[0]
    assert (row["schema"], row["gpu"], row["device"], row["driver"], row["stat"]) == (
        1, "h200-sxm", "NVIDIA H200", "1", "median",
    )  # fmt: skip
    assert row["p20_us"] <= row["time_us"] <= row["p80_us"]
    assert row["date"].startswith("20")


def test_kernel_kinds_alternate_and_start_with_fast_problems(tmp_path):
    library = Library()
    run(tmp_path, library, ("gemm", "attention_decode", "elementwise"), seconds=1.0)
    kinds = [q.kind for q in library.asked]
    assert len(set(kinds[: len(set(kinds))])) == len(set(kinds))
    assert len(library.checked) == len(set(kinds))
    assert library.asked[0].bound(device_of(H200)) == min(
        q.bound(device_of(H200)) for q in library.asked if q.kind == kinds[0]
    )


def test_time_limit_ends_a_run_and_skips_slow_kernels(tmp_path, monkeypatch):
    library = Library()
    limited = session(tmp_path / "a", library, seconds=0.2)
    with monkeypatch.context() as patched:
        ticks = count()
        patched.setattr(session_module, "monotonic", lambda: limited.start + 1e-3 * next(ticks))
        chosen = select_problems([library], ("qwen3-0.6b",), ("gemm",), ("bf16",))
        limited.measure_kernels(chosen, lambda _: None)
        assert 0 < len(library.asked) < len(problems(["qwen3-0.6b"], ["bf16"]))
        assert limited.elapsed < 0.3
    slow = Library()
    slow.calls = lambda problem, kernel, sets: [lambda: problem["M"] * 1.0] * sets
    found = session(tmp_path / "b", slow)
    found.measure_kernels(select_problems([slow], ("qwen3-0.6b",), ("gemm",), ("bf16",)), lambda _: None)
    assert found.left_out["it takes too long for the time limit"] > 0
    assert max(row["M"] for row in found.journal.rows) < 8192


def test_a_wrong_kernel_makes_no_row(tmp_path):
    found = run(tmp_path, Library(wrong=("norm",)), ("elementwise",), seconds=2)
    assert {row["op"] for row in found.journal.rows} >= {"add", "mlp_act"}
    assert "post_attention_layernorm" not in {row["op"] for row in found.journal.rows}
    assert found.left_out["mine fast: differs from its reference"] > 0


def test_kernels_with_non_finite_results_make_no_row(tmp_path):
    library = Library()
    library.finite = lambda outputs: False
    found = run(tmp_path, library)
    assert not found.journal.rows
    assert found.left_out == {"mine fast: its result is not finite": 20}  # in a row: the device is beyond help


class Tuned(Library):
    """Four other tilings: one is wrong, one slower, one hardly faster, and the last takes half of the time."""

    others = (Tiling(8, 1), Tiling(16, 1), Tiling(16, 2), Tiling(32, 4))

    def tilings(self, problem, kernel):
        sleep(self.pause)
        return self.others if problem["M"] > 1 else ()

    def calls(self, problem, kernel, sets, tiling=None):
        if tiling == self.others[0]:
            raise LaunchError("differs from its reference")
        times = {None: 2.0, self.others[1]: 3.0, self.others[2]: 1.999, self.others[3]: 1.0}
        return [lambda: times[tiling] * problem.bound(device_of(H200)) + 1e-6] * sets

    def __init__(self, pause=0.0):
        super().__init__()
        self.pause = pause


def tuned(folder, library, seconds=60.0, **more):
    journal = Journal(folder, header(MACHINE, [library]))
    found = Session(machine=MACHINE, backends=[library], journal=journal, seconds=seconds, **more)
    found.measure_kernels(select_problems([library], ["qwen3-0.6b"], ["gemm"], ("bf16",)), lambda _: None)
    return found


def test_fastest_tiling_is_measured_and_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(session_module, "_TUNING_PART", inf)
    found = tuned(tmp_path / "a", Tuned())
    rows = found.journal.rows
    assert {(row["M"] == 1, row["tiling"], row["tried"]) for row in rows} == {
        (True, "", 1), (False, "keys=32 splits=4", 4),
    }  # fmt: skip
    plain = {row["case"]: row for row in tuned(tmp_path / "b", Tuned(), tune=False).journal.rows}
    assert {(row["tiling"], row["tried"]) for row in plain.values()} == {("", 1)}
    assert all(row["time_us"] < plain[row["case"]]["time_us"] for row in rows if row["M"] > 1)
    assert found.unfit == {"fast keys=8 splits=1: differs from its reference": sum(row["M"] > 1 for row in rows)}
    assert not found.left_out


def test_tuning_takes_a_part_of_the_time(tmp_path):
    found = tuned(tmp_path, Tuned(pause=0.02), seconds=4.0)
    tried = [row["tried"] for row in found.journal.rows]
    assert found.tuning < 0.5 * found.elapsed + 0.2
    assert min(tried.count(1), tried.count(4)) > 0


def test_kernels_that_broke_the_device_are_skipped_later(tmp_path):
    """A process gets no more results from a GPU after an illegal access: the next run has to do without that kernel."""

    class Breaking(Library):
        framework = "ours"

        def calls(self, problem, kernel, sets, tiling=None):
            raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")

    def both():
        libraries = (Breaking(), Library())
        journal = Journal(tmp_path, header(MACHINE, libraries))
        found = Session(machine=MACHINE, backends=libraries, journal=journal, seconds=60.0)
        found.measure_kernels(select_problems(libraries, ["qwen3-0.6b"], ["gemm"], ("bf16",)), lambda _: None)
        return found

    first, second = both(), both()
    assert first.broken.startswith("ours fast gemm bf16 M=")
    assert not first.journal.rows
    assert not second.broken
    assert second.left_out == {"ours fast made the device unusable in an earlier run": len(second.journal.rows)}
    assert {row["framework"] for row in second.journal.rows} == {"mine"}


def test_only_the_tiling_that_broke_the_device_is_skipped_later(tmp_path, monkeypatch):
    monkeypatch.setattr(session_module, "_TUNING_PART", inf)

    class Breaking(Tuned):
        broken = False

        def calls(self, problem, kernel, sets, tiling=None):
            self.broken |= tiling == self.others[1]
            if self.broken:
                raise RuntimeError("Triton Error [CUDA]: misaligned address")
            return super().calls(problem, kernel, sets, tiling)

    first, second = tuned(tmp_path, Breaking()), tuned(tmp_path, Breaking())
    assert re.match(r"mine fast gemm bf16 M=\d+ N=\d+ K=\d+ keys=16 splits=1$", first.broken)
    assert not second.broken
    tried = [row for row in second.journal.rows if row["M"] > 1]
    assert {(row["tiling"], row["tried"]) for row in tried} == {("keys=32 splits=4", 3)}
    assert second.unfit["fast keys=16 splits=1: made the device unusable in an earlier run"] == len(tried)


def test_hanging_launch_times_out(monkeypatch):
    cuda = Cuda()
    monkeypatch.setattr("torch.cuda", cuda)
    monkeypatch.setattr(timing, "_HUNG_S", 0.05)
    sample = timing.GpuClock().sampler([partial(cuda.launch, 1e-5)])
    cuda.hangs = True
    with pytest.raises(HungError, match=r"^a launch did not end within 0.05 s$") as error:
        sample()
    assert breaks(error.value)


@pytest.mark.parametrize(
    ("said", "gone"),
    [  # cudaGetErrorString
        ("an illegal memory access was encountered", True),
        ("operation not supported on global/shared address space", True),
        ("invalid program counter", True),
        ("the launch timed out and was terminated", True),
        ("unspecified launch failure", True),
        ("invalid argument", False),
        ("out of memory", False),
        ("too many resources requested for launch", False),
    ],
)
def test_unrecoverable_device_errors_end_the_measurement(said, gone):
    assert breaks(RuntimeError(f"Triton Error [CUDA]: {said}")) == gone


def test_a_tiling_that_was_tried_first_when_the_process_ended_is_not_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(session_module, "_TUNING_PART", inf)
    tuned(tmp_path, Tuned())
    path = tmp_path / "journal.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    tiling = {"kind": ["mine", "fast", "gemm", "gemm", "bf16", ""], "tiling": "keys=16 splits=2"}
    trying = json.dumps({"trying": tiling}) + "\n"
    assert lines.count(trying) == 1
    path.write_text("".join(lines[: lines.index(trying) + 1]))
    found = tuned(tmp_path, Tuned())
    assert path.read_text().splitlines()[lines.index(trying) + 1] == json.dumps({"broken": tiling})
    assert found.unfit["fast keys=16 splits=2: made the device unusable in an earlier run"] > 0
    assert all(row["tried"] <= 3 for row in found.journal.rows)


def test_a_run_ends_where_a_launch_does_not(tmp_path, capsys, monkeypatch):
    class Hanging(Library):
        def calls(self, problem, kernel, sets, tiling=None):
            raise HungError("a launch did not end within 60 s")

    def measure_ceilings(session, progress):
        session.journal.ceilings.extend(CEILINGS)
        session.journal.complete = True

    monkeypatch.setattr(session_module, "backends", lambda name: ("gpu", (Hanging(),)))
    monkeypatch.setattr(machine_module, "this_machine", lambda kind, hardware: MACHINE)
    monkeypatch.setattr(Session, "measure_ceilings", measure_ceilings)
    monkeypatch.setattr("os._exit", ended := MagicMock())
    main(["measure", "--family", "gemm", "--model", "qwen3-0.6b", "--dtype", "bf16", "-o", str(tmp_path / "out")])
    ended.assert_called_once_with(1)
    out = capsys.readouterr().out
    assert "1 launch skipped: mine fast: a launch did not end within 60 s" in out
    assert re.search(r"became unusable after mine fast gemm bf16 M=1 .*:\nthe same command goes on without it", out)


def stopped(folder, monkeypatch):
    """A run that is interrupted at its third launch."""

    def measure_ceilings(session, progress):
        session.journal.ceilings.extend(CEILINGS)
        session.journal.complete = True

    monkeypatch.setattr(session_module, "backends", lambda name: ("gpu", (Library(breaks_at=2),)))
    monkeypatch.setattr(machine_module, "this_machine", lambda kind, hardware: MACHINE)
    monkeypatch.setattr(Session, "measure_ceilings", measure_ceilings)
    return main(["measure", "--family", "gemm", "--model", "qwen3-0.6b", "--dtype", "bf16", "-o", str(folder)])


def test_summary_of_too_few_rows_suggests_validate(tmp_path, capsys, monkeypatch):
    assert stopped(tmp_path, monkeypatch) == 130
    out = capsys.readouterr().out
    assert "calibrate needs 20 rows of one kernel and data type; the largest has 2:\nthe same command adds" in out
    assert out.endswith(f"Next:\n  llmviewer validate {tmp_path}/*.parquet\n")


def test_results_are_printed_before_a_write_error(tmp_path, capsys, monkeypatch):
    (tmp_path / "gemm.parquet").mkdir()
    assert stopped(tmp_path, monkeypatch) == 2
    out, error = capsys.readouterr()
    assert "bandwidth [GB/s]" in out
    assert "gemm.parquet: is a folder" in error


def test_a_run_ends_where_a_ceiling_does_not(tmp_path, capsys, monkeypatch):
    def hanging(*args, **kwargs):
        yield CEILINGS[0]
        raise HungError("a launch did not end within 60 s")

    monkeypatch.setattr(session_module, "backends", lambda name: ("gpu", (Library(),)))
    monkeypatch.setattr(machine_module, "this_machine", lambda kind, hardware: MACHINE)
    monkeypatch.setattr(session_module, "ceilings", hanging)
    monkeypatch.setattr("os._exit", ended := MagicMock())
    folder = tmp_path / "out"
    main(["measure", "--family", "gemm", "--model", "qwen3-0.6b", "--dtype", "bf16", "-o", str(folder)])
    ended.assert_called_once_with(1)
    after = f"became unusable after the ceiling {CEILINGS[0].what}:\nthe same command measures the ceilings again"
    assert after in capsys.readouterr().out
    assert not Journal(folder, header(MACHINE, [Library()])).complete


def test_the_ceiling_of_a_link_may_be_missing(monkeypatch):
    """Other ceilings are measured on a system without pinned memory."""

    def links(timed):
        raise RuntimeError("CUDA error: OS call failed")
        yield

    for part in ("_launches", "_streams"):
        monkeypatch.setattr(ceilings_module, part, lambda *given: iter(CEILINGS[:1]))
    monkeypatch.setattr(ceilings_module, "_links", links)
    found = ceilings_module.ceilings("cuda", Clock(), cache=5e7, dtypes=(), limit_s=0.1)
    assert [*found] == [CEILINGS[0]] * 2


def test_killed_run_resumes_from_its_journal(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Library(breaks_at=30))
    path = tmp_path / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 1 + len(CEILINGS) + 1 + 30
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])  # the last row was being written
    library = Library()
    found = run(tmp_path, library)
    cases = [row["case"] for row in found.journal.rows]
    assert len(cases) == len(set(cases)) == 29 + len(library.asked)
    whole = run(tmp_path / "other", Library())
    assert sorted(cases) == sorted(row["case"] for row in whole.journal.rows)
    assert [json.loads(line) for line in path.read_text().splitlines()][-1]["row"] == found.journal.rows[-1]


def test_unwritable_journal_is_refused_in_one_line(tmp_path):
    journal = Journal(tmp_path, header(MACHINE, [Library()]))
    journal.path.unlink()
    journal.path.symlink_to("/dev/full")
    with pytest.raises(InputError) as error:
        journal.ceilings_complete()
    assert str(error.value) == f"{journal.path}: cannot be written: No space left on device"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "gpu",
            "h100-sxm",
            "holds measurements with gpu 'h100-sxm', but this machine has 'h200-sxm'; give another folder with -o",
        ),
        (
            "versions",
            {"mine": "0.9"},
            "holds measurements with versions mine 0.9, but this machine has mine 1.0; give another folder",
        ),
        ("driver", "", "holds measurements with driver '', but this machine has '1'; give another folder with -o"),
    ],
)
def test_a_folder_holds_rows_of_one_machine(tmp_path, key, value, message):
    Journal(tmp_path, header(MACHINE, [Library()]) | {key: value})
    with pytest.raises(InputError) as raised:
        session(tmp_path, Library())
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_is_measured_into_by_one_process_at_a_time(tmp_path):
    held = "import sys, pathlib; from llmviewer.measuring.journal import _lock; "
    held += "_lock(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", held, tmp_path], stdin=pipe, stdout=pipe) as other:
        other.stdout.readline()
        with pytest.raises(InputError) as raised:
            session(tmp_path, Library())
        other.stdin.close()
    assert str(raised.value) == (
        f"{tmp_path}: in use by another `llmviewer measure`; wait until it ends, as each would slow the other"
    )
    assert session(tmp_path, Library()).journal.complete


def test_a_file_that_is_no_journal_is_not_overwritten(tmp_path):
    (tmp_path / "journal.jsonl").write_text("my notes\n")
    with pytest.raises(InputError, match=r"journal.jsonl:1: is not a line of a journal; give another folder with -o"):
        session(tmp_path, Library())
    assert (tmp_path / "journal.jsonl").read_text() == "my notes\n"


def test_ceilings_become_a_hardware_file(tmp_path):
    assert rates(CEILINGS, kind="gpu", cache=50e6) == {
        "memory.bandwidth": 4.2e12, "matrix.bf16": 7e14, "host.bandwidth": 5e10,
    }  # fmt: skip
    path = session(tmp_path, Library()).hardware()
    assert path == tmp_path / "hardware" / "h200-sxm-measured.yaml"
    found = load_hardware(str(path))
    assert found.fact("memory.bandwidth") == 4.2e12
    assert found.fact("matrix.bf16") == 7e14
    assert found.fact("matrix.fp8") == H200.fact("matrix.fp8")
    assert next(fact.source for fact in found.facts if fact.key == "matrix.bf16") == "measured"
    text = ceilings_text(CEILINGS, H200.numbers, rates(CEILINGS, kind="gpu", cache=50e6))
    assert "memory.bandwidth: 88% of the datasheet's 4.80 TB/s" in text
    assert "launch                       4.00 us" in text
    assert max(map(len, text.splitlines())) <= 80


def test_matrix_ceiling_is_at_least_the_fastest_measured_product():
    """The ceiling is that of its own type where there is one; libraries that measure ceilings may be slow at it."""
    sizes = {"family": "gemm", "M": 8192, "N": 8192, "K": 8192}
    rows = [sizes | {"dtype": "bf16", "time_us": 1374.0}, sizes | {"dtype": "fp8", "time_us": 700.0}]
    found = rates(CEILINGS, [*rows, {"family": "moe", "dtype": "bf16"}], kind="gpu", cache=50e6)
    assert found.pop("matrix.bf16") == pytest.approx(2 * 8192**3 / 1374e-6)
    assert found == {"memory.bandwidth": 4.2e12, "host.bandwidth": 5e10}
    slower = rates(CEILINGS, [rows[0] | {"time_us": 2000.0}], kind="gpu", cache=50e6)
    assert slower == rates(CEILINGS, kind="gpu", cache=50e6)


@pytest.mark.parametrize("cache", [2**20, 40e6, 50e6, 96 * 2**20, 384e6])
def test_the_longest_stream_is_one_of_the_memory(cache):
    last = sizes("cpu", cache)[-1]
    assert 4 * cache <= last <= 4 * cache + 2**16
    assert "memory.bandwidth" in rates([Ceiling(what="triad", size=last // 12 * 12, value=1.0, unit="B/s")], kind="gpu",
                                       cache=cache)  # fmt: skip


def test_the_bandwidth_of_a_gpu_is_that_of_two_gib():
    assert sizes("cuda", 50e6) == [*sizes("cpu", 50e6), 2**31]
    assert sizes("cuda", 1e9) == sizes("cpu", 1e9)
    found = [
        Ceiling(what="copy", size=2**28, value=4.0e12, unit="B/s"),
        Ceiling(what="triad", size=2**31 // 12 * 12, value=4.2e12, unit="B/s"),
        Ceiling(what="copy", size=2**31, value=4.1e12, unit="B/s"),
        Ceiling(what="read", size=2**28, value=3.0e12, unit="B/s"),
    ]
    assert rates(found, kind="gpu", cache=50e6) == {"memory.bandwidth": 4.2e12}
    found[0] = replace(found[0], value=9e12)  # the cache helped
    assert rates(found, kind="gpu", cache=50e6) == {"memory.bandwidth": 4.2e12}


def test_the_ceiling_of_fp8_has_the_sums_of_the_matrix_units_alone(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("torch._scaled_mm", product := MagicMock(wraps=torch._scaled_mm))
    found = _product("meta", "fp8", 32)()
    assert (found.shape, found.dtype) == ((32, 32), torch.bfloat16)
    assert product.call_args.kwargs["use_fast_accum"]


def test_a_draft_keeps_the_higher_rate_of_a_formula():
    draft = {"sources": {}, "vector": {"source": "formula", "fp32": {"value": "200 GOP/s"}, "bf16": "300 GOP/s"}}
    found = with_rates(
        draft, {"vector.fp32": 1e11, "vector.bf16": 4e11, "memory.bandwidth": 3e10}, year=2026, keep_higher=True
    )
    assert found["vector"]["fp32"] == {"value": "200 GOP/s"}
    assert found["vector"]["bf16"] == {"value": "400.0 GOP/s", "source": "measured"}
    assert found["memory"]["bandwidth"]["value"] == "30.00 GB/s"
    assert "bandwidth" not in draft.get("memory", {})


def test_a_disturbed_ceiling_replaces_no_number_of_a_file(tmp_path):
    """Other programs lowered it in every repetition, so the true rate is higher; a repetition alone makes it a rate."""
    spoilt = [replace(one, disturbed=one.what == "matrix bf16") for one in CEILINGS]
    assert disturbed_rates(spoilt, kind="gpu", cache=50e6) == {"matrix.bf16"}
    assert disturbed_rates([*spoilt, *CEILINGS], kind="gpu", cache=50e6) == frozenset()
    measured = session(tmp_path, Library())
    measured.journal.ceilings[:] = spoilt
    found = load_hardware(str(measured.hardware()))
    assert found.fact("matrix.bf16") == H200.fact("matrix.bf16")
    assert found.fact("memory.bandwidth") == 4.2e12
    draft = {"sources": {}, "vector": {"source": "formula", "fp32": "200 GOP/s"}}
    low = {"vector.fp32": 3e11, "memory.bandwidth": 3e10}
    made = with_rates(draft, low, year=2026, keep_higher=True, disturbed=low)
    assert made["vector"] == {"source": "formula", "fp32": "200 GOP/s"}
    assert made["memory"] == {"source": "disturbed", "bandwidth": {"value": "30.00 GB/s", "source": "disturbed"}}
    assert "the true rate is higher" in made["sources"]["disturbed"]["title"]


SMI = """#!/bin/sh
case "$*" in
*clocks_event*) exit 1 ;;
*-lms*)
    echo '345, 80.5, 30, 0x0000000000000001'
    until [ -e "$0.timed" ]; do sleep 0.05; done
    printf '%s\\n' '1980, 650.1, 50, 0x0' '1755, 699.9, 61, 0x0000000000000004' '1710, [N/A], 70, 0x20' 'N/A, 1, 2, 0x8'
    exec sleep 60 ;;
*) echo '345, 0x1' ;;
esac
"""


def test_state_of_a_gpu_is_that_while_it_is_timed(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    watch = Watch("gpu")

    def seen(count):
        end = monotonic() + 30
        while len(watch._seen) < count and monotonic() < end:
            sleep(0.01)

    seen(1)
    watch.start()
    (tmp_path / "nvidia-smi.timed").touch()
    seen(4)
    assert watch() == MachineState(clock_mhz=1755, power_w=650.1, temperature_c=61, throttled="power cap; heat")
    watch.start()
    assert watch() == MachineState(clock_mhz=1710, power_w=0, temperature_c=70, throttled="heat")
    watch.close()
    monkeypatch.setenv("PATH", "")
    without = Watch("gpu")
    assert without() == MachineState()
    without.close()


def test_gpus_are_identified_by_their_driver_names():
    assert gpu_name("NVIDIA H200") == "h200-sxm"
    assert gpu_name("NVIDIA L4") == "l4"
    assert gpu_name("Voodoo 2") is None


def test_the_summary_compares_with_the_ceiling_and_the_vendor():
    row = {"framework": "triton", "kernel": "gemv", "family": "gemm", "dtype": "bf16", "loop": 0, "time_us": 20.0,
           "ceiling_us": 10.0, "case": "triton gemv gemm bf16 M=1 N=8 K=8"}  # fmt: skip
    other = row | {"framework": "pytorch", "kernel": "", "time_us": 15.0, "case": "pytorch gemm bf16 M=1 N=8 K=8"}
    lines = kernels_text([row, other]).splitlines()
    assert lines[1].split() == ["pytorch", "gemm", "bf16", "1", "67%", "67%", "-"]
    assert lines[2].split() == ["triton", "gemv", "gemm", "bf16", "1", "50%", "50%", "75%"]
    assert kernels_text([row | {"loop": 256}]).splitlines()[1].split()[-3:] == ["-", "-", "-"]  # it is in the cache


def test_goals_are_met_or_missed_by_the_median_of_their_rows():
    def row(framework, kernel, family, dtype, us, moved=200e6, **sizes):
        words = " ".join(f"{name}={size}" for name, size in sizes.items())
        op = "gemm" if family == "gemm" else f"gqa {dtype}"
        case = " ".join(f"{framework} {kernel} {op} {dtype} {words}".split())
        return {"framework": framework, "kernel": kernel, "family": family, "dtype": dtype, "time_us": us, "loop": 0,
                "moved_bytes": moved, "case": case, **sizes}  # fmt: skip

    large, small, one = ({"M": m, "N": 8192, "K": 8192} for m in (4096, 2, 1))
    prompt, step = {"q_len": 2048, "kv_len": 2048}, {"batch": 16, "kv_len": 8192}
    rows = [
        row("triton", "gemm", "gemm", "bf16", 100.0, **large), row("pytorch", "", "gemm", "bf16", 95.0, **large),
        row("triton", "gemm", "gemm", "bf16", 60.0, **small),
        row("triton", "gemm", "gemm", "bf16", 60.0, moved=20e6, **small),  # in L2
        row("triton", "gemv", "gemm", "bf16", 50.0, **one), row("triton", "gemm_w4a16", "gemm", "int4_wo", 20.0, **one),
        row("triton", "flash_attention", "attention_prefill", "bf16", 100.0, **prompt),
        row("pytorch", "flash", "attention_prefill", "bf16", 80.0, **prompt),
        row("pytorch", "cudnn", "attention_prefill", "bf16", 60.0, **prompt),
        row("pytorch", "cudnn", "attention_decode", "bf16", 60.0, **step),
    ]  # fmt: skip
    found = goals(rows, CEILINGS, cache=50e6)
    values = {goal.what.split(",")[0]: reached for goal, reached in found.items()}
    assert values == {
        "bf16 GEMM": pytest.approx([200e6 / 60e-6 / 4.2e12, 200e6 / 50e-6 / 4.2e12]),  # the later of that name
        "FlashAttention": [0.6], "decode attention beyond L2": [], "W4A16 GEMV": [2.5],
    }  # fmt: skip
    assert next(iter(found.values())) == [0.95]
    text = goals_text(found).splitlines()
    assert max(map(len, text)) <= 80
    verdicts = [line.split()[-2:] for line in text[1:] if not line.startswith("  ")]
    assert verdicts == [["0.95", "met"], ["20%", "short"], ["not", "measured"], ["0.87", "met"], ["17%", "short"]]
    assert "  2 rows, 0.79 to 0.95" in text


def errors(capsys, *arguments):
    code = main(["measure", *arguments])
    out = capsys.readouterr()
    assert (code, out.out) == (2, "")
    assert out.err.count("\n") == 1
    return out.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--minutes", "0"), "--minutes must be from 0.05 to 1440; got 0"),
        (("--family", "gem"), "--family must be some of gemm, attention, moe, scan, elementwise"),
        (("--model", "lama"), "no model 'lama'"),
        (("--dtype", "bf17"), "--dtype must be one of fp32, bf16"),
        (("--backend", "torch"), "--backend torch needs a GPU that torch can use; to measure the CPU give"),
        (
            ("--dtype", "nvfp4"),
            "pytorch-cpu: no kernel of gemm, attention_prefill, attention_decode, moe, scan, elementwise in nvfp4 at",
        ),
        (("--family", "moe"), "pytorch-cpu: no kernel of moe in bf16 at shapes of qwen3-0.6b, llama-3.2-1b"),
        (("--hardware", "voodoo-2"), "no hardware 'voodoo-2'"),
        (
            ("--hardware", "h100"),
            "--hardware must be of kind cpu, which is what is measured; h100-sxm is of kind gpu; leave it out, or give",
        ),
    ],
)
def test_errors_are_one_line_and_leave_nothing(capsys, tmp_path, arguments, message):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available() and "torch" in arguments:
        pytest.skip("there is a GPU")
    folder = tmp_path / "out"
    backend = [] if "--backend" in arguments else ["--backend", "cpu"]
    assert message in errors(capsys, *backend, *arguments, "-o", str(folder))
    assert not folder.exists()


def test_a_file_is_no_folder(capsys, tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_text("mine")
    assert "must be a folder" in errors(capsys, "--backend", "cpu", "-o", str(path))
    assert path.read_text() == "mine"


@pytest.mark.slow("in Triton's interpreter")
def test_triton_kernels_run_in_the_interpreter(tmp_path):
    """The times mean nothing: the clock is made up, the launches are not."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from llmviewer.measuring.triton_backend import TritonBackend

    class Fake:
        def sampler(self, calls):
            for call in calls:
                call()
            return lambda: TimingSample(1e-5)

        def wait(self):
            pass

    backend = TritonBackend("cpu", Fake())
    found = problems(["llama-3.1-8b", "deepseek-v2-lite", "qwen3-next-80b-a3b"], ["bf16", "int4_wo", "fp8"])
    kernels = {(q.family, q.op, q.dtype, q.kv_dtype, *backend.kernels(q)) for q in found if backend.kernels(q)}
    assert kernels >= {
        ("gemm", "gemm", "bf16", "", "gemm"), ("gemm", "gemm", "bf16", "", "gemv"),
        ("gemm", "gemm", "int4_wo", "", "gemm_w4a16"), ("gemm", "gemm", "fp8", "", "quantize gemm"),
        ("attention_prefill", "gqa", "bf16", "bf16", "flash_attention"),
        ("attention_decode", "gqa", "bf16", "fp8", "decode_attention"),
        ("attention_decode", "mla_absorb", "bf16", "bf16", "mla_decode"),
        ("moe", "moe", "bf16", "", "fused_moe"), ("elementwise", "norm", "bf16", "", "rms_norm"),
        ("elementwise", "permute", "bf16", "", "permute"), ("scan", "gdn_scan_prefill", "bf16", "", "gated_delta_scan"),
    }  # fmt: skip
    sizes = {"gemm": {"M": 3, "N": 64, "K": 96}, "attention_decode": {"batch": 2, "kv_len": 70},
             "attention_prefill": {"batch": 1, "q_len": 40, "kv_len": 40}}  # fmt: skip
    for family, small in sizes.items():
        problem = next(q for q in found if q.family == family and q.op in ("gemm", "gqa") and q.dtype == "bf16"
                        and q.kv_dtype in ("", "bf16"))  # fmt: skip
        heads = (
            {"q_heads": 4, "kv_heads": 2, "head_dim": 32, "v_head_dim": 32} if "q_heads" in dict(problem.sizes) else {}
        )
        problem = replace(problem, sizes=tuple((dict(problem.sizes) | small | heads).items()))
        (kernel,) = backend.kernels(problem)
        backend.check(problem, kernel)
        calls = backend.calls(problem, kernel, 2)
        first, second = (call() for call in calls)
        assert backend.finite(first)
        assert torch.equal(first[0], second[0])
        assert first[0].data_ptr() != second[0].data_ptr()
        for tiling in backend.tilings(problem, kernel)[:2]:
            (other,) = backend.calls(problem, kernel, 1, tiling)
            torch.testing.assert_close(other()[0].float(), first[0].float(), rtol=0.02, atol=0.02)


# A process of its own, with a driver that says that there is an H100: enough to compile for it, not to launch.
COMPILE = """
import json, sys
from dataclasses import replace

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Driver:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)

driver.set_active(Driver())
from llmviewer.kernels import load_kernel
from llmviewer.kernels.base import Target
from llmviewer.measuring import triton_backend

part = triton_backend._KernelPart("gemv", "bf16", {"M": 1, "N": 4096, "K": 4096})
kernel, target = load_kernel("gemv"), Target(sm=90, multiprocessors=132)
tilings = kernel.tilings(target, triton_backend._case(part))[:2]
triton_backend._compile(part, target, [replace(tilings[0], num_warps=3), *tilings])
(launch,) = kernel.launches(triton_backend._case(part), target, tilings[0])
print(json.dumps([type(one).__name__ for one in launch.function.device_caches[0][0].values()]))
"""


@pytest.mark.slow("compiles kernels")
def test_tilings_are_compiled_before_they_are_launched_and_one_that_is_wrong_alone_is_not(triton_cache):
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from .kernel_checks import compiled

    assert compiled(COMPILE, [], triton_cache) == [["CompiledKernel", "CompiledKernel"]]


def test_a_tiling_that_computes_something_else_is_refused(monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from llmviewer.kernels import load_kernel
    from llmviewer.measuring import triton_backend

    kernel = load_kernel("gemm")
    problem = next(q for q in problems(["llama-3.1-8b"], ["bf16"]) if q.family == "gemm" and q["M"] == 8)
    problem = replace(problem, sizes=(("M", 8), ("N", 32), ("K", 32)))

    def plan(target, tile=None, **inputs):
        found = kernel.plan(target, **inputs)
        return found if tile is None else lambda: [torch.zeros_like(one) for one in found()]

    backend = triton_backend.TritonBackend("cpu", Clock())
    monkeypatch.setattr(triton_backend, "load_kernel", lambda name: replace(kernel, plan=plan))
    with pytest.raises(LaunchError, match=r"^gemm at bf16 M=8 N=32 K=32: differs from its reference"):
        backend.calls(problem, "gemm", 1, tiling=object())
    assert backend.calls(problem, "gemm", 1)


def test_number_of_tensor_sets_depends_on_free_memory():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from llmviewer.kernels import load_kernel
    from llmviewer.kernels.base import tensors
    from llmviewer.measuring import triton_backend

    backend = triton_backend.TritonBackend("cpu", Clock())
    (problem,) = (one for one in backend.own() if one.op == "rope_cache" and dict(one.sizes)["size_B"] == 64)
    cache = 2 * 64 * 4096 * 8 * 128 * 2
    qkv, rest = 64 * 48 * 128 * 2, 4 * 64 * 64 + 4 * 64 + 8 * 64  # table, lengths, frequencies
    assert problem.nbytes < 2e6
    assert backend.room(problem, "rope_cache", cache) == 0
    assert backend.room(problem, "rope_cache", cache + qkv + rest) == 1
    assert backend.room(problem, "rope_cache", cache + 3 * (qkv + rest)) == 3
    for name, moved in (("rope_cache", "lengths"), ("embedding", "ids")):
        kernel = load_kernel(name)
        inputs = kernel.make(kernel.cases[0], "cpu", 0)
        others = [inputs, *(kernel.next_inputs(inputs, number) for number in (1, 2))]
        assert all(kernel.run(**one)[0].isfinite().all() for one in others)
        assert len({tuple(one[moved].tolist()) for one in others}) == 3
        large = max(tensors(inputs), key=torch.Tensor.numel)
        assert all(any(large is tensor for tensor in tensors(one)) for one in others)


def test_large_results_are_compared_piece_by_piece(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(backend_module, "COMPARED_ELEMENTS", 7)
    wanted = torch.arange(50.0).reshape(10, 5)
    backend_module.compare(wanted + 0.1, wanted, 0.0, 0.11)
    for place in ((0, 0), (4, 2), (9, 4)):
        ours = wanted.clone()
        ours[place] += 0.25
        with pytest.raises(LaunchError, match=r"^differs from its reference by 0.25 more than a relative error of 0$"):
            backend_module.compare(ours, wanted, 0.0, 0.11)
        ours[place] = inf
        with pytest.raises(LaunchError, match=r"^its result is not finite$"):
            backend_module.compare(ours, wanted, 0.0, 0.11)


def test_tilings_of_fp8_may_lose_bits_as_sums_do_on_hopper():
    """A sum of K = 14336 that drops what is below 13 bits, each 32 elements, beside that of eight parts."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from llmviewer.kernels import load_kernel
    from llmviewer.kernels.base import case
    from llmviewer.measuring import triton_backend

    kernel, one = load_kernel("gemm"), case("fp8_e4m3", M=256, N=8, K=14336)
    inputs = kernel.make(one, "cpu", 0)
    x, w = (inputs[name].float().unflatten(1, (-1, 32)) for name in ("x", "w"))
    steps = torch.einsum("mks,nks->kmn", x, w)

    def summed(steps):
        found = torch.zeros_like(steps[0])
        for step in steps:
            mantissa, exponent = (found + step).frexp()
            found = torch.ldexp((mantissa * 2**13).trunc() / 2**13, exponent)
        return found * inputs["x_scale"] * inputs["w_scale"]

    rule, split = summed(steps), sum(map(summed, steps.chunk(8)))
    assert (rule - split).abs().max() > 2**-8
    triton_backend._compare(kernel, one, [rule], [split], times=2)
    with pytest.raises(LaunchError):
        triton_backend._compare(kernel, one, [rule], [sum(map(summed, steps.chunk(8)[:7]))], times=2)


def test_torch_kernels_are_checked_against_their_formulas(monkeypatch):
    pytest.importorskip("torch")
    from llmviewer.measuring import torch_backend

    monkeypatch.setattr(torch_backend, "_MAX_RANDOM_BYTES", 2**28)
    backend = torch_backend.TorchBackend("cpu")
    every = [q for dtype in ("bf16", "fp32") for q in problems(["qwen3-0.6b"], [dtype])]
    found = {q.kind: q for q in reversed(every)}
    able = {kind: q for kind, q in found.items() if backend.kernels(q)}
    assert {kind[1] for kind in able} == {"gemm", "gqa", "norm", "add", "activation", "rope", "embedding", "softmax"}
    for problem in able.values():
        backend.check(problem, "")
    backend._operations["add"] = replace(backend._operations["add"], run=lambda x, y: x - y)
    with pytest.raises(LaunchError, match="differs from its reference"):
        backend.check(able["elementwise", "add", "bf16", ""], "")
    attention = backend._operations["attention_decode"]
    seen = []
    watched = replace(attention, run=lambda q, k, v: seen.append(q.shape[3]) or attention.run(q, k, v))
    backend._operations["attention_decode"] = watched
    problem = next(q for q in able.values() if q.family == "attention_decode")
    assert problem["head_dim"] == 128
    backend.check(problem, "")
    assert seen == [64]  # which all libraries have: a width that one has not is left out alone


@pytest.mark.slow("measures this CPU")
def test_the_whole_loop_on_this_cpu(capsys, tmp_path, monkeypatch, request):
    """Ceilings, kernels, calibration and validation, for real: of the CPU time, as other tests have the cores too."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    torch.set_num_threads(1)  # CPU time adds up over threads
    monkeypatch.setattr(timing, "perf_counter", process_time)
    monkeypatch.setattr(timing, "_interruptions", lambda: 0)
    folder = tmp_path / "measured"
    arguments = ["measure", "--backend", "cpu", "--minutes", "0.15", "--family", "gemm", "--model", "smollm2-135m",
                 "--model", "smollm2-360m", "-o", str(folder)]  # fmt: skip
    profile, rows = folder / "profile.yaml", 0
    calibration = ["calibrate", str(folder / "gemm.parquet"), "-o", str(profile)]
    for _ in range(12):
        assert main(arguments) == 0
        out = capsys.readouterr().out
        if not (folder / "gemm.parquet").exists():  # other programs had the cores all the time
            continue
        before, rows = rows, len(pd.read_parquet(folder / "gemm.parquet"))
        assert f"{folder}: {counted(rows, 'row')}, {rows - before} of them new" in out
        # Enough rows of one kernel and data type, and not too many of them disturbed.
        with monkeypatch.context() as patched:
            patched.setenv("LLMVIEWER_HARDWARE_PATH", str(folder / "hardware"))
            if rows >= 60 and "llmviewer calibrate" in out and main(calibration) == 0:
                break
    assert "bandwidth [GB/s]" in out
    assert "## Ceilings" in (folder / "report.md").read_text()
    assert "to reach" not in (folder / "report.md").read_text()  # which is of kernels on a GPU
    assert "matrix bf16" in out
    frame = pd.read_parquet(folder / "gemm.parquet")
    assert frame["case"].is_unique
    assert (frame["time_us"] > 0).all()
    assert f"LLMVIEWER_HARDWARE_PATH={folder / 'hardware'} llmviewer calibrate" in out
    monkeypatch.setenv("LLMVIEWER_HARDWARE_PATH", str(folder / "hardware"))
    assert profile.is_file()
    capsys.readouterr()
    assert main(["validate", str(folder / "gemm.parquet"), "--profile", str(profile), "--format", "json"]) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert (group["source"], group["expected"]["rows"]) == ("calibrated", rows)
    assert group["expected"]["rank"] > 0.7
    assert group["expected"]["median"] < group["bound"]["median"]
    name = re.search(rf"llmviewer analyze MODEL (\S+) --profile {folder}/profile.yaml", out)[1]
    assert main(["analyze", "smollm2-135m", name, "--profile", str(profile)]) == 0
    assert f"calibrated on {name} pytorch-cpu" in " ".join(capsys.readouterr().out.split())
