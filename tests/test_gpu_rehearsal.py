"""Measuring on a GPU, rehearsed without one: all that the host does, with tensors that have no memory and launches that
compute nothing. What kernels compute is in other tests, which have Triton's interpreter and its compiler.
"""

from dataclasses import replace
from functools import partial
from importlib import util
from itertools import count, product
from pathlib import Path
from time import monotonic
from types import SimpleNamespace

import pandas as pd
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch.overrides import TorchFunctionMode  # noqa: E402

from llmviewer.cli import main  # noqa: E402
from llmviewer.kernels import kernel_names, load_kernel  # noqa: E402
from llmviewer.kernels.base import Launch, Target  # noqa: E402
from llmviewer.kernels.decoder import DecodeStep  # noqa: E402
from llmviewer.measuring import backend, session, triton_backend  # noqa: E402
from llmviewer.measuring.session import _TOO_LONG  # noqa: E402

from .fake_cuda import Cuda  # noqa: E402

H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132, L2_cache_size=50 * 2**20,
    shared_memory_per_block_optin=227 * 1024,
)  # fmt: skip
TARGET = Target(sm=90, multiprocessors=132)
LAUNCH_S = 1e-5


class Tensors(TorchFunctionMode):
    """Tensors on "cuda" have no memory; numbers read from them are 0, and conditions are met."""

    READ = {"item": 0.0, "__float__": 0.0, "__bool__": True, "equal": True}  # noqa: RUF012 - a constant

    def __init__(self, cuda):
        super().__init__()
        self.cuda = cuda

    def __torch_function__(self, function, types, arguments=(), named=None):
        named = dict(named or {})
        if function.__name__ in self.READ:
            return self.READ[function.__name__]
        if function.__name__ == "bincount":  # has as many numbers as there are in memory
            return torch.empty(named["minlength"], dtype=torch.int64, device="meta")
        if str(named.get("device")) in ("cuda", "meta"):
            named |= {"device": "meta"}
            named.pop("generator", None)
        named.pop("pin_memory", None)
        self.cuda.launch(LAUNCH_S)
        return function(*("meta" if isinstance(one, str) and one == "cuda" else one for one in arguments), **named)


class Generator:
    """One on "cuda", which this build of torch has not."""

    def __new__(cls, device, real=torch.Generator):
        return real()


def told(name):
    """A kernel whose reference is what its launches would give, as none can be computed."""
    kernel = load_kernel(name)
    return replace(kernel, reference=lambda **inputs: kernel.plan(TARGET, **inputs).outputs)


def captured(step):
    """A graph of a step, which tells by its tensors that it is on no GPU."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


@pytest.fixture
def gpu(monkeypatch):
    cuda = Cuda()
    for name in ("Stream", "current_stream", "stream", "_sleep", "Event", "CUDAGraph", "graph"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (79 * 2**30, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: H100)
    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(Launch, "__call__", lambda self: cuda.launch(LAUNCH_S))
    monkeypatch.setattr(Launch, "warmup", lambda self: None)
    monkeypatch.setattr(triton_backend, "load_kernel", told)
    with Tensors(cuda):
        yield cuda


@pytest.fixture
def script(gpu, monkeypatch):
    """benchmarks/gpu.py."""
    spec = util.spec_from_file_location("gpu_script", Path(__file__).parent.parent / "benchmarks" / "gpu.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "load_kernel", told)
    monkeypatch.setattr(DecodeStep, "capture", captured)
    return module


@pytest.mark.slow("goes through all kernels")
def test_measure_has_rows_of_all_that_there_are_kernels_for(gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(backend, "_MAX_SETS", 4)  # what is launched 256 times is written no other way
    monkeypatch.setattr(
        session, "monotonic", partial(next, count(monotonic(), 5e-3))
    )  # steady, whatever else runs here
    command = ["measure", "--minutes", "0.05", "-o", str(tmp_path), "--format", "csv"]
    command += ["--model", "qwen3-30b-a3b", "--model", "qwen3-next-80b-a3b"]
    assert main(command) == 0
    out = capsys.readouterr().out.splitlines()
    assert {line.partition("skipped: ")[2] for line in out if "skipped" in line} <= {_TOO_LONG}
    rows = pd.concat([pd.read_csv(path) for path in tmp_path.glob("*.csv")])
    found = {(row.framework, row.family) for row in rows.itertuples()}
    families = {"gemm", "attention_prefill", "attention_decode", "elementwise"}
    assert found == {*product(("triton", "pytorch"), families), ("triton", "moe"), ("triton", "scan")}


@pytest.mark.slow("goes through all launches")
def test_the_script_compiles_what_measure_launches(script, monkeypatch):
    """Each launch once, in one of the processes."""
    compiled = []
    monkeypatch.setattr(Launch, "warmup", lambda self: compiled.append(self))  # noqa: PLW0108 - a method
    monkeypatch.setattr(
        Launch, "signature", lambda self: self.arguments.keys()
    )  # functions of the interpreter have none
    monkeypatch.setattr(script, "DTYPES", {"gpu": ("bf16", "int4_wo")})
    monkeypatch.setattr(script, "MODELS", {"gpu": ("qwen3-30b-a3b",)})
    monkeypatch.setattr(script, "_NUM_PROCESSES", 2)
    ends = [line for number in range(2) for line in script.compiled(number)]
    assert [line.partition(":")[0] for line in ends] == ["compile 0", "compile 1"]
    assert len(compiled) == int(ends[0].split()[-2])
    assert {one.function.fn.__name__ for one in compiled} >= {"_weight_only", "_decode", "_flash_attention", "_permute"}


@pytest.mark.slow("goes through all kernels")
def test_the_script_checks_steps_and_times(script):
    for name in kernel_names():
        assert [*script.check(name)] == []
    for number in {model: number for number, (model, *_) in enumerate(script._STEPS)}.values():  # one of each model
        assert [*script.stepped(number)][-1].endswith("the same as launch by launch")
    for number in range(len(script._TIMED)):
        first, *lines = script.timed(number)
        untimed = [line for line in lines if " of copy  " not in line]
        assert untimed == ["the fastest first:", "the fastest of each, in turn, the median of 3:"], first
    for name in script._UNTIMED_KERNELS:
        cases = sum(line.startswith(name) for line in script.timed_kernel(name))
        assert cases == len(script._DECIDING_CASES.get(name, load_kernel(name).full_size))
