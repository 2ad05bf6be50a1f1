"""benchmarks/gpu.py, without a GPU: what it tells of parts that fail, hang or die, and of ways that do."""

from dataclasses import replace
from importlib import util
from itertools import islice
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from llmviewer.measuring.timing import HungError, TimingSample

PATH = Path(__file__).parent.parent / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu():
    spec = util.spec_from_file_location("gpu_script", PATH)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("body", "code", "out"),
    [
        ("print('found', flush=True)", 0, "found\n"),
        ("print('found', flush=True); sys.exit(3)", 3, "found\n"),
        ("os._exit(9)", 9, "time 3: ended by 9\n"),
        ("print('found', flush=True); sys.exit('no GPU')", 1, "found\ntime 3: ended by 1: no GPU\n"),
        (
            "print('found', flush=True); print('this way', file=sys.stderr, flush=True); time.sleep(60)", 1,
            "found\ntime 3: took more than 2 s: this way\n",
        ),
    ],
)  # fmt: skip
def test_output_of_a_part_is_printed_even_if_it_crashes(gpu, body, code, out, tmp_path, monkeypatch, capfd):
    script = tmp_path / "part.py"
    script.write_text(f"import os, sys, time\n{body}\n")
    monkeypatch.setattr(gpu, "__file__", str(script))
    monkeypatch.setattr(gpu, "_LIMIT_S", {"time": 2})
    assert gpu._process("time", "3") == code
    assert capfd.readouterr().out == out


def test_script_without_a_gpu_exits_at_once(gpu, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(gpu, "_process", lambda *part: pytest.fail("was begun"))
    with pytest.raises(SystemExit, match="there is no GPU that torch can use"):
        gpu.main(["step"])


@pytest.mark.slow("waits for the end of a time limit")
def test_all_parts_share_the_time_and_leave_no_process(gpu, tmp_path, monkeypatch, capfd):
    """A part that never ends, and a process that it began, are ended; what it printed is kept."""
    script, folder = tmp_path / "part.py", tmp_path / "all"
    begun = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    script.write_text(f"import sys\nprint(*sys.argv[1:], flush=True)\nif 'gemm' in sys.argv:\n    exec({begun!r})\n")
    monkeypatch.setattr(gpu, "__file__", str(script))
    monkeypatch.setattr(gpu, "_UNTIMED_KERNELS", ("gemm", "gemv", "sample"))
    monkeypatch.setattr(gpu, "_RESERVED_S", 6.0)
    monkeypatch.setattr(gpu, "_LAST_S", 1.0)
    (tmp_path / "llmviewer.py").write_text("import sys; print(*sys.argv[1:])\n")
    monkeypatch.chdir(tmp_path)  # where -m looks first
    assert gpu.everything(0.3, folder) == 1
    endings = [line.split(", ")[0] for line in capfd.readouterr().out.splitlines()]
    names = ("check", "compile", "measure", "step")
    assert endings == [*(f"{name}: ended by 0" for name in names), "time_gemm: took too long"]
    *command, minutes, _, _ = (folder / "measure.txt").read_text().split()
    assert command == ["measure", "--no-tune", "--minutes"]
    assert 0.05 <= float(minutes) <= 0.2
    first, pid = (folder / "time_gemm.txt").read_text().splitlines()
    assert first == "time gemm"
    assert (folder / "step.txt").read_text() == "step\n"
    end = monotonic() + 10
    while is_running(pid) and monotonic() < end:  # a killed process ends when it is next scheduled
        sleep(0.05)
    assert not is_running(pid)


def is_running(pid):
    """Whether a process is there that is not a zombie, which has no command line."""
    command = Path(f"/proc/{pid}/cmdline")
    try:
        return bool(command.read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


IN_TURN = "the fastest of each, in turn, the median of 3:"


class Clock:
    def sampler(self, calls):
        seconds = calls[0]()
        return lambda: TimingSample(seconds)

    def wait(self):
        pass


def fails():
    raise RuntimeError("does not fit\nas is said below")


def test_each_timing_is_printed_when_measured(gpu, monkeypatch, capsys):
    ways = {("rule", "the rule's"): lambda: 2e-3, ("tuning", "wrong"): fails, ("tuning", "wide"): lambda: 1e-3}
    monkeypatch.setattr(gpu, "GpuClock", Clock)
    monkeypatch.setattr(gpu, "_copy", lambda clock: 1e12)
    monkeypatch.setattr(gpu, "_ways", lambda question: ((*name, lambda way=way: [way]) for name, way in ways.items()))
    lines = []
    for line in gpu.timed(0):
        lines.append(line)
        tried = capsys.readouterr().err.split("\n")[:-1]
        assert tried in ([], ["the rule's"], ["wrong"], ["wide"])
    names = [line.rsplit("  ", 1)[-1] for line in lines[1:]]
    assert names == [
        "the rule's",
        "wrong: does not fit",
        "wide",
        "the fastest first:",
        "wide",
        "the rule's",
        IN_TURN,
        "the rule's",
        "wide",
    ]


def hangs():
    raise HungError("a launch did not end")


def test_hanging_launch_ends_the_timing(gpu, monkeypatch):
    ways = {("rule", "ours"): lambda: 2e-3, ("torch", "theirs"): lambda: 1e-3, ("tuning", "hangs"): hangs}
    ways |= {("tuning", "after"): lambda: pytest.fail("was launched")}
    monkeypatch.setattr(gpu, "GpuClock", Clock)
    monkeypatch.setattr(gpu, "_copy", lambda clock: 1e12)
    monkeypatch.setattr(gpu, "_ways", lambda question: ((*name, lambda way=way: [way]) for name, way in ways.items()))
    lines = gpu.timed(0)
    names = [line.rsplit("  ", 1)[-1] for line in islice(lines, 7)]
    assert names[3:] == ["hangs: a launch did not end", "the fastest first:", "theirs", "ours"]
    with pytest.raises(HungError):
        next(lines)


@pytest.fixture
def copied(gpu, monkeypatch):
    """Lines of a check of one case of "copy", where each launch gives `run` of a number of multiprocessors and x."""

    def checked(run, clock=Clock):
        kernel = gpu.load_kernel("copy")
        small = replace(
            kernel,
            make=lambda case, device, seed: kernel.make(case, "cpu", seed),
            plan=lambda target, x: lambda: (run(target.multiprocessors, x),),
            cases=kernel.cases[-1:],
        )
        monkeypatch.setattr(gpu, "load_kernel", lambda name: small)
        monkeypatch.setattr(gpu, "GpuClock", clock)
        driver = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: driver)
        return gpu.check("copy")

    return checked


@pytest.mark.parametrize("wrong", [3, 132])
def test_cases_are_checked_as_they_are_cut_up_for_many_multiprocessors_and_for_few(copied, wrong):
    assert [*copied(lambda count, x: x)] == []
    first, second = copied(lambda count, x: x + 1e3 * (count == wrong))
    assert first.startswith("copy at fp16 rows=7 width=1337: differs from its reference by 1e+03")
    assert second.startswith("copy at bf16 rows=7 width=1337: differs from its reference by 1e+03")


def test_kernel_that_overwrites_its_inputs_fails_the_check(copied):
    assert "differs from its reference" in next(copied(lambda count, x: x.fill_(7.0)))


def test_hanging_launch_ends_the_check(copied):
    class Hanging(Clock):
        def wait(self):
            hangs()

    lines = copied(lambda count, x: x, Hanging)
    assert next(lines) == "copy at fp16 rows=7 width=1337: a launch did not end"
    with pytest.raises(HungError):
        next(lines)
