"""benchmarks/gpu.py, without a GPU: what it tells of parts that fail, hang or die, and of ways that do."""

from importlib import util
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from llmviewer.measuring.timing import Sample

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
def test_what_a_part_found_is_printed_however_it_ends(gpu, body, code, out, tmp_path, monkeypatch, capfd):
    script = tmp_path / "part.py"
    script.write_text(f"import os, sys, time\n{body}\n")
    monkeypatch.setattr(gpu, "__file__", str(script))
    monkeypatch.setattr(gpu, "_LIMIT_S", {"time": 2})
    assert gpu._process("time", "3") == code
    assert capfd.readouterr().out == out


def test_a_machine_without_a_gpu_is_told_so_at_once(gpu, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(gpu, "_process", lambda *part: pytest.fail("was begun"))
    with pytest.raises(SystemExit, match="there is no GPU that torch can use"):
        gpu.main(["step"])


IN_TURN = "the fastest of each, in turn, the median of 3:"


class Clock:
    def sampler(self, calls):
        seconds = calls[0]()
        return lambda: Sample(seconds)


def fails():
    raise RuntimeError("does not fit\nas is said below")


def test_each_way_is_told_as_soon_as_its_time_is_known(gpu, monkeypatch, capsys):
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
