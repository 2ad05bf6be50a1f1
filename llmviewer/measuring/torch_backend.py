"""Kernels that torch calls: those of vendors in cuBLAS, cuDNN, oneDNN and MKL, and its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, Final

from ..records import frozen
from .backend import compare
from .problems import Problem
from .timing import Call, Clock, GpuClock, HostClock

_FLOATS: Final = ("bf16", "fp16", "fp32")
_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_EPSILON: Final = {"bf16": 2.0**-7, "fp16": 2.0**-10, "fp32": 2.0**-16}  # relative error of a result rounded once
_RANDOM_COUNT: Final = 2**20  # random numbers drawn and then repeated, as a CPU draws them slowly
_MAX_RANDOM_BYTES: Final = 2**33  # bytes of repeated numbers on a GPU; fewer on a CPU, which has smaller caches
_ALIGNED: Final = 128  # alignment of tensors by allocators [elements]
_CHECKED_SIZES: Final[Mapping[str, Mapping[str, int]]] = {  # sizes of the case that is checked
    "gemm": {"M": 37, "N": 96, "K": 160},
    "attention_prefill": {"batch": 2, "q_len": 70, "kv_len": 70},
    "attention_decode": {"batch": 3, "kv_len": 150},
    "elementwise": {"rows": 13, "cols": 256, "table": 50},
}
_HEADS: Final = {"q_heads": 4, "kv_heads": 2, "head_dim": 64, "v_head_dim": 64}  # supported by every kernel


@frozen
class _Operation:
    """make: problem to inputs; run and reference: inputs to a tensor."""

    make: Callable[[Problem], dict[str, Any]]
    run: Callable[..., Any]
    reference: Callable[..., Any]


class TorchBackend:
    """Torch on "cpu" or "cuda"."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch, self._device = torch, device
        self.framework = "pytorch" if device == "cuda" else "pytorch-cpu"
        self.version = str(torch.__version__).partition("+")[0]
        self.versions: Mapping[str, str] = {"torch": str(torch.__version__)}
        if device == "cpu":
            self.versions = {**self.versions, "threads": str(torch.get_num_threads())}
        self.clock: Clock = GpuClock() if device == "cuda" else HostClock()
        self._random = torch.Generator(device).manual_seed(0)
        self._bytes = (
            min(_MAX_RANDOM_BYTES, torch.cuda.mem_get_info()[0] // 8) if device == "cuda" else _MAX_RANDOM_BYTES // 8
        )
        self._numbers: dict[str, Any] = {}  # random ones of each data type, which all inputs are parts of
        self._next = 0
        self._operations = {
            "gemm": _Operation(self._gemm, torch.nn.functional.linear, lambda x, weight: x @ weight.T),
            "attention_prefill": _Operation(self._prefill, self._attend, self._attended),
            "attention_decode": _Operation(self._decode, self._attend, self._attended),
            "norm": _Operation(self._normed, self._norm, self._norm_reference),
            "add": _Operation(lambda q: self._rows(q, "xy"), lambda x, y: x + y, lambda x, y: x + y),
            "activation": _Operation(
                lambda q: self._rows(q, "xy"),
                lambda x, y: torch.nn.functional.silu(x) * y,
                lambda x, y: x / (1 + (-x).exp()) * y,
            ),
            "rope": _Operation(self._rotated, self._rope, self._rope_reference),
            "embedding": _Operation(
                self._embedded,
                torch.nn.functional.embedding,
                lambda input, weight: weight[input],  # noqa: A006
            ),
            "softmax": _Operation(
                lambda q: self._rows(q, "x"),
                lambda x: x.softmax(-1),
                lambda x: (x - x.amax(-1, keepdim=True)).exp() / (x - x.amax(-1, keepdim=True)).exp().sum(-1)[:, None],
            ),
        }

    def own(self) -> Sequence[Problem]:
        return ()

    def kernels(self, problem: Problem) -> Sequence[str]:
        is_supported = self._name(problem) in self._operations and problem.dtype in _FLOATS
        if not is_supported or problem.kv_dtype not in ("", problem.dtype) or problem.kept > self._bytes / 2:
            return ()
        if not problem.family.startswith("attention"):
            return ("",)
        if problem.op != "gqa" or problem["window"]:
            return ()
        return ("flash", "cudnn") if self._device == "cuda" and problem.dtype != "fp32" else ("",)

    def check(self, problem: Problem, kernel: str) -> None:
        sizes = dict(problem.sizes) | dict(_CHECKED_SIZES[problem.family])
        sizes |= _HEADS if "q_heads" in sizes else {}
        checked_problem = replace(problem, sizes=tuple(sizes.items()))
        op = self._operations[self._name(problem)]
        inputs = op.make(checked_problem)
        exact = {n: v.float() if self._torch.is_floating_point(v) else v for n, v in inputs.items()}
        tolerance = _EPSILON[problem.dtype]
        with self._kernel(kernel):
            reference = op.reference(**exact)
            compare(op.run(**inputs), reference, 4 * tolerance, 4 * tolerance * float(reference.abs().max()))

    def tilings(self, problem: Problem, kernel: str) -> Sequence[Any]:  # noqa: ARG002 - vendors choose their own
        return ()

    def room(self, problem: Problem, kernel: str, memory: float) -> int:  # noqa: ARG002
        return int(memory / problem.kept)

    def calls(self, problem: Problem, kernel: str, sets: int, tiling: Any = None) -> Sequence[Call]:  # noqa: ARG002
        op = self._operations[self._name(problem)]
        outputs: list[Any] = [None] * sets  # kept, as memory that is reused at once would be cached

        def call(inputs: dict[str, Any], number: int) -> Any:
            if not kernel:
                outputs[number] = op.run(**inputs)
                return outputs[number]
            with self._kernel(kernel):
                outputs[number] = op.run(**inputs)
            return outputs[number]

        return [partial(call, op.make(problem), number) for number in range(sets)]

    def finite(self, outputs: Any) -> bool:
        return bool(outputs.sum(dtype=self._torch.float32).isfinite())  # one read of all elements

    def _name(self, problem: Problem) -> str:
        return problem.op if problem.family == "elementwise" else problem.family

    def _kernel(self, name: str) -> Any:
        """A context that selects the attention kernel of that name."""
        if not name:
            return nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return sdpa_kernel({"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[name])

    def _normal(self, problem: Problem, *shape: int) -> Any:
        """A tensor of random numbers: the next part of the repeated ones, so that it is not cached."""
        if problem.dtype not in self._numbers:
            dtype = getattr(self._torch, _DTYPES[problem.dtype])
            random_numbers = self._torch.randn(_RANDOM_COUNT, generator=self._random, device=self._device).to(dtype)
            self._numbers[problem.dtype] = random_numbers.repeat(max(self._bytes // random_numbers.nbytes, 1))
        numbers, count = self._numbers[problem.dtype], prod(shape)
        start = self._next if self._next + count <= len(numbers) else 0
        self._next = start + -(-count // _ALIGNED) * _ALIGNED
        return numbers[start : start + count].view(shape)

    def _rows(self, problem: Problem, names: str) -> dict[str, Any]:
        return {name: self._normal(problem, problem["rows"], problem["cols"]) for name in names}

    def _gemm(self, problem: Problem) -> dict[str, Any]:
        m, n, k = (problem[name] for name in "MNK")
        return {"x": self._normal(problem, m, k), "weight": self._normal(problem, n, k)}

    def _prefill(self, problem: Problem) -> dict[str, Any]:
        return self._heads(problem, problem["q_len"])

    def _decode(self, problem: Problem) -> dict[str, Any]:
        return self._heads(problem, 1)

    def _heads(self, problem: Problem, q_len: int) -> dict[str, Any]:
        b, kv, heads, kv_heads = (problem[name] for name in ("batch", "kv_len", "q_heads", "kv_heads"))
        return {
            "q": self._normal(problem, b, heads, q_len, problem["head_dim"]),
            "k": self._normal(problem, b, kv_heads, kv, problem["head_dim"]),
            "v": self._normal(problem, b, kv_heads, kv, problem["v_head_dim"]),
        }

    def _attend(self, q: Any, k: Any, v: Any) -> Any:
        attention = self._torch.nn.functional.scaled_dot_product_attention
        return attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=q.shape[1] != k.shape[1])

    def _attended(self, q: Any, k: Any, v: Any) -> Any:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
        if q.shape[2] > 1:
            causal_mask = self._torch.ones(scores.shape[2:], dtype=self._torch.bool, device=q.device).tril()
            scores = scores.masked_fill(~causal_mask, float("-inf"))
        return scores.softmax(-1) @ v

    def _normed(self, problem: Problem) -> dict[str, Any]:
        return self._rows(problem, "x") | {"weight": self._normal(problem, problem["cols"])}

    def _norm(self, x: Any, weight: Any) -> Any:
        return self._torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)

    def _norm_reference(self, x: Any, weight: Any) -> Any:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight

    def _rotated(self, problem: Problem) -> dict[str, Any]:
        """Rows to rotate, and the cosine and sine of each row's angle."""
        rows = self._rows(problem, "x")
        angles = self._torch.arange(problem["rows"], device=self._device)[:, None] * 0.01
        return rows | {name: getattr(angles, name)().to(rows["x"].dtype) for name in ("cos", "sin")}

    def _rope(self, x: Any, cos: Any, sin: Any) -> Any:
        low, high = x.chunk(2, -1)
        return self._torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

    def _rope_reference(self, x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[1] // 2
        turned = self._torch.complex(x[:, :half], x[:, half:]) * self._torch.complex(cos, sin)
        return self._torch.cat((turned.real, turned.imag), -1)

    def _embedded(self, problem: Problem) -> dict[str, Any]:
        token_ids = self._torch.randint(
            problem["table"], (problem["rows"],), generator=self._random, device=self._device
        )
        return {"input": token_ids, "weight": self._normal(problem, problem["table"], problem["cols"])}
