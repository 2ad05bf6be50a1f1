"""Mutated inputs of every kind that a user can give: `python benchmarks/fuzz.py [--kind KIND] [--seed N] [--runs N]`.

Each input is a valid one with a few changes, drawn by the seed: values of a document, bytes of a file, words of an
option. An input must be used or refused with one line of text (exit code 2). Reported are exceptions that are no
InputError, warnings, refusals of several lines or more than 1,200 characters, negative or undefined amounts in a
result, and inputs that take more than 5 s of processor time or 4 GiB of memory. A config that a builder of an
architecture cannot use at all is refused with the exception that it raised; --strict reports these, too.

The exit code is 1 if anything is reported. `--kind KIND --seed N --runs 1` repeats a reported input and prints it.
"""

from __future__ import annotations

import argparse
import copy
import csv
import gzip
import io
import itertools
import json
import logging
import math
import random
import re
import resource
import signal
import sqlite3
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
import yaml

from llmviewer._layout import data_dir
from llmviewer.cli import cli, main
from llmviewer.devices.files import hardware_names, load_hardware
from llmviewer.errors import InputError
from llmviewer.model_files import load_model
from llmviewer.parallel.layout import parse_layout
from llmviewer.serving.lengths import parse_lengths
from llmviewer.stored.gguf_files import read_gguf
from llmviewer.sweeping.axes import parse_numbers
from llmviewer.techniques import declaration, parse_technique, techniques
from llmviewer.timelines.reading import read_timeline
from llmviewer.transforms.offload import parse_offload
from llmviewer.transforms.quantize import parse_quantization

Run = Callable[[], object]

MAX_SECONDS: Final = 5.0
MAX_TEXT: Final = 1200
MAX_MEMORY: Final = 4 * 2**30
HANG_SECONDS: Final = 60
MODEL, DEVICE = "llama-68m", "h100-sxm"
NASTY: Final[tuple[Any, ...]] = (
    0, -1, 1, 2, 3, 7, 0.5, -0.5, 1e-300, 1e300, 2**31, 2**53 + 1, 900_000_000_000, 10**400, math.inf, -math.inf,
    math.nan, None, True, False, "", " ", "0", "-1", "nan", "1e400", "x" * 5000, "\0", "é\n", "../../etc/passwd",
    "os:abort", "=1+1", [], {}, [[]], [[1]], [None], {"a": 1}, [0] * 50, ["full_attention"] * 3,
)  # fmt: skip
WORDS: Final = (
    "0", "-1", "1", "2", "3.5", "1e9", "1e400", "9" * 400, "inf", "nan", "", " ", ",", "=", ":", "x", "*", "..", "/",
    "all", "max", "none", "true", "1-2", "1..4", "1..1e9", "64*2", "1,2", "é", "\0", "%s", "{}", "'", '"', "@", "+",
    "fp8", "W4A16g128", "W1A1", "KV8", "tp=2", "weights=0.5", "10%", "2x", "5 ms", "GB", "layers.0-3",
)  # fmt: skip


# Mutations


def changed_tree(random: random.Random, tree: Any, changes: int = 0) -> Any:
    """A copy of a document with some values replaced, dropped, repeated or exchanged."""
    tree = copy.deepcopy(tree)
    mild = random.random() < 0.6  # values of the same kind, which are not refused at once
    for _ in range(changes or random.choice((1, 1, 1, 1, 2, 4))):
        places = list(_places(tree))
        if not places:
            return copy.deepcopy(random.choice(NASTY))
        inside, key = random.choice(places)
        if mild and type(inside[key]) in (int, float, bool, str):
            inside[key] = _alike(random, inside[key])
            continue
        match random.randrange(10):
            case 0:
                del inside[key]
            case 1:
                other, place = random.choice(places)
                inside[key] = copy.deepcopy(other[place]) if place in other or isinstance(other, list) else None
            case 2 if isinstance(inside[key], int | float):
                inside[key] = inside[key] * random.choice((2, 3, 0.5, -1, 10, 1000)) + random.choice((0, 1, -1))
            case 3 if isinstance(inside[key], list):
                inside[key] = inside[key] * 2 if random.random() < 0.5 else inside[key][: len(inside[key]) // 2]
            case 4 if isinstance(inside[key], str):
                inside[key] = changed_text(random, inside[key])
            case 5:
                inside[key] = [inside[key]]
            case _:
                inside[key] = copy.deepcopy(random.choice(NASTY))
    return tree


def _alike(random: random.Random, value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return random.choice(("bfloat16", "gelu", "relu2", "full_attention", "linear", "max", value.upper()))
    sizes = (0, 1, 2, 3, 5, 8, 64, 100, 10_001, value - 1, value + 1, 2 * value, value // 2, -value)
    return random.choice(sizes) if isinstance(value, int) else random.choice((0.0, 1.0, 0.3, -1.0, 1e9, value / 3))


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value in a document."""
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in list(keys):
        yield tree, key
        yield from _places(tree[key])


def changed_text(random: random.Random, text: str) -> str:
    """Text with some of its words, numbers and marks replaced, dropped or repeated."""
    numbers = [*re.finditer(r"\d+", text)]
    if numbers and random.random() < 0.5:
        match, size = random.choice(numbers), random.choice((0, 1, 2, 3, 7, 8, 64, 1000, 10**6, 10**9))
        return f"{text[: match.start()]}{size}{text[match.end() :]}"
    parts = re.split(r"([\w.]+)", text)
    for _ in range(random.choice((1, 1, 2, 4))):
        place = random.randrange(len(parts))
        parts[place] = random.choice((random.choice(WORDS), "", parts[place] * 2, random.choice(parts)))
    return "".join(parts)


def changed_bytes(random: random.Random, data: bytes) -> bytes:
    """Bytes with some flipped, cut off, inserted or replaced by numbers that are none."""
    raw = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        place = random.randrange(len(raw) + 1)
        match random.randrange(7):
            case 0:
                raw = raw[:place]
            case 1 if raw:
                raw[place - 1] ^= 1 << random.randrange(8)
            case 2:
                raw[place:place] = random.choice((b"\0", b"\xff" * 8, b'"', b"{", b"[", b",", b"\n", b"\xef\xbb\xbf"))
            case 3:
                end = min(place + random.randrange(1, 9), len(raw))
                raw[place:end] = random.randbytes(end - place)
            case 4:
                raw[place:place] = raw[: random.randrange(1, 200)]
            case 5:
                raw = bytearray(raw.decode("utf-8", "replace").encode("utf-16"))
            case _:
                numbers = [*re.finditer(rb"\d+(?:\.\d+)?", raw)]
                if numbers:
                    match = random.choice(numbers)
                    text = random.choice((b"nan", b"inf", b"-1", b"9" * 400, b"1e400", b"", b"null", b'"x"', b"0"))
                    raw[match.start() : match.end()] = text
    return bytes(raw)


# Kinds: from a generator of random numbers and an empty folder, a description of an input and what uses it


@cache
def _configs() -> list[dict[str, Any]]:
    """The config of one shipped model of each model_type."""
    every: dict[str, dict[str, Any]] = {}
    for path in sorted(data_dir("models").glob("*.yaml")):
        config = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)["config"]
        every.setdefault(config["model_type"], config)
    return list(every.values())


@cache
def _yaml_files(folder: str) -> list[tuple[str, Any]]:
    return [
        (path.name, yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader))
        for path in sorted(data_dir(folder).glob("*.yaml"))[::7]
    ]


DESCRIBED: Final = """
name: d
title: D
source: {repository: none, file: x}
config:
  model_type: described
  torch_dtype: bfloat16
  vocab_size: 320
  hidden_size: 64
  norm: rms
  layers:
    - {repeat: 2, name: a, mixer: {kind: attention, num_heads: 4, num_kv_heads: 2, head_dim: 16, window: 8},
       feed_forward: {kind: mlp, inner: 128, act: silu, gated: true}}
    - {repeat: 1, name: b, mixer: {kind: mamba2, inner: 128, heads: 4, head_dim: 32, state: 16, groups: 1, taps: 4,
       chunk: 16},
       feed_forward: {kind: experts, experts: 8, chosen: 2, inner: 64, act: silu, gated: true}}
    - {name: c, mixer: {kind: latent_attention, num_heads: 4, nope_dim: 16, rope_dim: 8, value_dim: 16, kv_rank: 32,
       q_rank: 16}}
"""


def _analyze(model: object, *options: str, device: object = DEVICE) -> Run:
    return lambda: command(
        "analyze", str(model), str(device), "--prompt", "64", "--gen", "4", "--format", "json", *options
    )


def config(random: random.Random, folder: Path) -> tuple[object, Run]:
    """A changed config.json, to be loaded or analyzed."""
    document = changed_tree(random, random.choice(_configs()))
    path = folder / "config.json"
    path.write_text(json.dumps(document, skipkeys=True))
    with_analysis = random.random() < 0.3
    return document, _analyze(path) if with_analysis else lambda: load_model(str(path))


def described(random: random.Random, folder: Path) -> tuple[object, Run]:
    """A changed YAML description of a model, to be analyzed."""
    path = folder / "d.yaml"
    if random.random() < 0.3:
        path.write_bytes(changed_bytes(random, DESCRIBED.encode()))
    else:
        document = changed_tree(random, yaml.load(DESCRIBED, Loader=yaml.CSafeLoader))
        path.write_text(yaml.dump(document, allow_unicode=True) if isinstance(document, dict) else str(document))
    return path.read_bytes(), _analyze(path)


def device(random: random.Random, folder: Path) -> tuple[object, Run]:
    """A changed hardware file, to be loaded or used in an analysis."""
    name, file = random.choice(_yaml_files("hardware"))
    path = folder / name
    path.write_text(yaml.dump(changed_tree(random, file), allow_unicode=True))
    return path.read_text(), _analyze(MODEL, device=path) if random.random() < 0.5 else lambda: load_hardware(str(path))


def profile(random: random.Random, folder: Path) -> tuple[object, Run]:
    """A changed profile, used in an analysis on its device."""
    name, file = random.choice(_yaml_files("profiles"))
    path = folder / name
    path.write_text(yaml.dump(changed_tree(random, file), allow_unicode=True))
    target = next(
        (hardware for hardware in sorted(hardware_names(), key=len, reverse=True) if name.startswith(hardware)), DEVICE
    )
    return path.read_text(), _analyze(MODEL, "--profile", str(path), device=target)


SCENARIO: Final[dict[str, Any]] = {
    "model": MODEL, "hardware": DEVICE, "batch": 4, "prompt": 64, "gen": 4, "quant": "W8A8KV8", "tp": 2,
    "attention": "flash", "with": ["sparsity", {"window": {"size": 32}}], "hardware-set": ["memory.bandwidth=2x"],
    "images": 0, "bound": False, "offload": "weights=0.5",
}  # fmt: skip


def scenario(random: random.Random, folder: Path) -> tuple[object, Run]:
    """A changed scenario file, to be analyzed."""
    path = folder / "scenario.yaml"
    document = changed_tree(random, SCENARIO)
    path.write_text(yaml.dump(document, allow_unicode=True))
    return document, lambda: command("analyze", "--scenario", str(path), "--format", "json")


def _trace() -> list[dict[str, Any]]:
    names = ("rms_norm_kernel", "nvjet_qkv", "flash_fwd_splitkv_kernel", "nvjet_o", "act_and_mul_kernel", "nvjet_down")
    return [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 10.0 * place, "dur": 5.0,
         "args": {"device": 0, "Input Dims": [[4, 8], [8, 8]], "Input type": ["float", "float"]}}
        for place, name in enumerate(names * 4)
    ] + [
        {"ph": "X", "cat": "gpu_user_annotation", "name": "execute_context_0(0)_generation_8(8)", "pid": 0,
         "ts": 0.0, "dur": 60.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0, "args": {}},
    ]  # fmt: skip


TABLES: Final = (
    "Start (ns),Duration (ns),Device,Name\n" + "1,2,0,nvjet\n5,2,0,flash_fwd\n9,2,0,nvjet\n" * 3,
    "Kernel_Name,Agent_Id,Start_Timestamp,End_Timestamp\n" + '"gemm<a, b>",1,10,20\nattention,1,30,40\n' * 3,
    "Time (%),Total Time (ns),Instances,Name\n50,1000,10,nvjet\n50,1000,10,flash_fwd\n",
    "Name,Calls,TotalDurationNs\nnvjet,4,1000\nflash_fwd,4,1000\n",
)


def _database(random: random.Random, path: Path) -> None:
    def value(valid: object) -> object:
        wrong = (None, b"\xff", "x", -1, 2**62, math.inf, 1e300)
        return random.choice(wrong) if random.random() < 0.05 else valid

    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER, value)")
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, globalPid, demangledName)")
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, globalPid)")
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", [(n, value(f"flash_{n}")) for n in range(3)])
        rows = [[value(v) for v in (10 * n, 10 * n + 5, 0, 1, n % 3)] for n in range(9)]
        connection.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?)", rows)
        connection.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, ?)", [row[:4] for row in rows[:2]]
        )
        connection.commit()
    if random.random() < 0.3:
        path.write_bytes(changed_bytes(random, path.read_bytes()))


def _layerwise() -> dict[str, Any]:
    leaf = {"entry": {"name": "nvjet", "cuda_time_us": 3.0, "invocations": 2}, "children": []}
    return {"decode_1": {"summary_stats": [{"entry": {"name": "m", "cuda_time_us": 0}, "children": [leaf, leaf]}]}}


def timeline(random: random.Random, folder: Path) -> tuple[object, Run]:
    """A changed trace, table or database of a profiler, to be read or compared with a model."""
    form = random.choice(("trace", "table", "database", "layers", "bytes"))
    path = folder / f"{form}.json"
    if form == "database":
        _database(random, path)
    elif form == "table":
        path.write_bytes(changed_bytes(random, random.choice(TABLES).encode()))
    else:
        document = _layerwise() if form == "layers" else {"traceEvents": _trace()}
        text = json.dumps(document if form == "bytes" else changed_tree(random, document), skipkeys=True).encode()
        data = changed_bytes(random, text) if form == "bytes" else text
        if random.random() < 0.3:
            data = changed_bytes(random, gzip.compress(data)) if random.random() < 0.5 else gzip.compress(data)
        path.write_bytes(data)
    if random.random() < 0.7:
        return path.read_bytes(), lambda: read_timeline(path, random.choice(("decode", "prefill")))
    return path.read_bytes(), lambda: command("timeline", str(path), MODEL, DEVICE, "--format", "json")


def _safetensors(header: Any) -> bytes:
    text = json.dumps(header, skipkeys=True).encode()
    return struct.pack("<Q", len(text)) + text


TINY: Final[dict[str, Any]] = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2,
    "num_hidden_layers": 1, "vocab_size": 32, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 4], "modules_to_not_convert": ["lm_head"]},
}  # fmt: skip


def checkpoint(random: random.Random, folder: Path) -> tuple[object, Run]:
    """A folder with a changed safetensors checkpoint and its config files, to be loaded."""
    layer = "model.layers.0."
    shapes = {"model.embed_tokens": [32, 8], **{f"{layer}self_attn.{n}_proj": [8, 8] for n in "qkvo"},
              f"{layer}mlp.gate_proj": [16, 8], f"{layer}mlp.up_proj": [16, 8], f"{layer}mlp.down_proj": [8, 16],
              f"{layer}input_layernorm": [8], "model.norm": [8], "lm_head": [32, 8]}  # fmt: skip
    header = {f"{name}.weight": {"dtype": random.choice(("BF16", "F8_E4M3", "U8")), "shape": shape,
                                 "data_offsets": [0, 0]} for name, shape in shapes.items()}  # fmt: skip
    data = _safetensors(changed_tree(random, header) if random.random() < 0.7 else header)
    (folder / "model.safetensors").write_bytes(changed_bytes(random, data) if random.random() < 0.3 else data)
    settings_of_model = changed_tree(random, TINY) if random.random() < 0.5 else TINY
    (folder / "config.json").write_text(json.dumps(settings_of_model, skipkeys=True))
    if random.random() < 0.2:
        index = changed_tree(random, {"weight_map": {f"{name}.weight": "model.safetensors" for name in shapes}})
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, skipkeys=True))
    if random.random() < 0.2:
        settings = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
        (folder / "hf_quant_config.json").write_text(json.dumps(changed_tree(random, settings), skipkeys=True))
    return (settings_of_model, data), lambda: load_model(str(folder))


def _gguf(metadata: dict[str, Any], tensors: dict[str, Any]) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        if isinstance(value, str):
            out += text(key) + struct.pack("<I", 8) + text(value)
        else:
            out += text(key) + struct.pack("<II", 4, value & 0xFFFFFFFF)
    for name, shape in tensors.items():
        out += text(f"{name}.weight") + struct.pack(f"<I{len(shape)}qIQ", len(shape), *shape, 12, 0)
    return out


def gguf(random: random.Random, folder: Path) -> tuple[object, Run]:
    """A changed GGUF file, to be read and loaded."""
    sizes = {"block_count": 1, "embedding_length": 256, "feed_forward_length": 256, "attention.head_count": 2,
             "attention.head_count_kv": 2, "vocab_size": 32, "attention.layer_norm_rms_epsilon": 1}  # fmt: skip
    metadata: dict[str, Any] = {"general.architecture": "llama"}
    metadata |= {f"llama.{name}": size for name, size in sizes.items()}
    square = (*(f"attn_{n}" for n in ("q", "k", "v", "output")), *(f"ffn_{n}" for n in ("gate", "up", "down")))
    tensors = {"token_embd": [256, 32], "output": [256, 32], **{f"blk.0.{name}": [256, 256] for name in square}}
    if random.random() < 0.7:
        key = random.choice(sorted(metadata))
        metadata[key] = _alike(random, metadata[key])
        shape = random.choice(list(tensors.values()))
        shape[random.randrange(2)] = _alike(random, 256)
    data = _gguf(metadata, tensors)
    path = folder / "model.gguf"
    path.write_bytes(changed_bytes(random, data) if random.random() < 0.4 else data)
    return path.read_bytes(), lambda: (read_gguf(path), load_model(str(path)))


MEASURED: Final = (
    "gpu,framework,dtype,family,M,N,K,time_us\n" + "".join(
        f"H100-SXM,cublas,bf16,gemm,{m},4096,4096,{10 + m / 50}\n" for m in (1, 2, 4, 8, *range(16, 4097, 204))),
    "gpu,framework,family,batch,kv_len,q_heads,kv_heads,head_dim,v_head_dim,time_us\n" + "".join(
        f"H100-SXM,vllm,attention_decode,{b},4096,32,8,128,128,{10 * b}\n" for b in (1, 4, 16, 64, 128)),
    "gpu,framework,dtype,family,tokens,hidden,inter,topk,experts,time_us\n" + "".join(
        f"H100-SXM,vllm,fp8,moe,{t},2048,768,8,128,{50 + t}\n" for t in (1, 8, 64, 512)),
    "gpu,framework,family,op,num_gpus,bytes,time_us\n" + "".join(
        f"H100-SXM,nccl,collectives,all_reduce,8,{b},{20 + b / 1e5}\n" for b in (1024, 1 << 20, 1 << 26)),
    "gpu,framework,family,op,rows,bytes,time_us\n" + "".join(
        f"H100-SXM,vllm,elementwise,rms_norm,{r},{r * 8192},{3 + r / 500}\n" for r in (1, 64, 4096)),
)  # fmt: skip


def measurements(random: random.Random, folder: Path) -> tuple[object, Run]:
    """A changed table of measured kernel times, to be validated or calibrated with."""
    path = folder / "rows.csv"
    table = random.choice(MEASURED)
    if random.random() < 0.6:
        rows = changed_tree(random, list(csv.reader(io.StringIO(table))))
        path.write_text("\n".join(",".join(map(str, r)) if isinstance(r, list) else str(r) for r in rows or ()))
    else:
        path.write_bytes(changed_bytes(random, table.encode()))
    if random.random() < 0.8:
        return path.read_bytes(), lambda: command("validate", str(path))
    return path.read_bytes(), lambda: command("calibrate", str(path), "-o", str(folder / "made.yaml"))


ARRIVALS: Final = (
    (".csv", "timestamp,prompt,gen,cached\n" + "".join(f"{n},{64 + n},8,16\n" for n in range(8))),
    (".csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,64,8\n2023-11-16 18:17:04.03,39,10\n"),
    (".jsonl", "".join(json.dumps({"timestamp": 100 * n, "input_length": 1024, "output_length": 4, "hash_ids": [n // 2,
                                   n]}) + "\n" for n in range(6))),
    (".txt", "100\n200\n300\n"),
)  # fmt: skip


def arrivals(random: random.Random, folder: Path) -> tuple[object, Run]:
    """A changed file of arrivals or of prompt lengths, to be simulated."""
    ending, text = random.choice(ARRIVALS)
    path = folder / f"requests{ending}"
    path.write_bytes(changed_bytes(random, text.encode()))
    flags = ("--prompt-lengths", str(path), "--rate", "5") if ending == ".txt" else ("--arrivals", str(path))
    return path.read_bytes(), lambda: command("simulate", MODEL, DEVICE, *flags, "--requests", "8", "--format", "json")


OPTIONS: Final = {
    "--quant": "W4A16g128,down_proj=W8A16,layers.0-3=W16A16", "--attention": "eager", "--accounting": "faithful",
    "--mla": "auto", "--hardware-set": "memory.bandwidth=2x", "--expert-skew": "0.5", "--tp": "2", "--pp": "1",
    "--ep": "1", "--dp": "2", "--cp": "1", "--micro-batches": "1", "--collective": "ring", "--redundant-experts": "0",
    "--offload": "weights=0.5,kv=0.2@storage", "--batch": "4", "--prompt": "64", "--gen": "4", "--kv-len": "100",
    "--images": "0", "--measured": "tpot=25ms", "--library": "vllm", "--engine": "vllm", "--prefill-layout": "tp=2",
    "--decode-layout": "tp=2 dp=2", "--kv-transfer": "after", "--kv-link": "scale-out", "--tpot": "0.01",
    "--with": "speculative:draft=llama-68m,gamma=4,alpha=0.7",
}  # fmt: skip
COMMANDS: Final = {
    "analyze": ("analyze", MODEL, DEVICE),
    "compare": ("compare", MODEL, DEVICE, "l40s", "--batch", "1,8"),
    "sweep": ("sweep", MODEL, DEVICE, "--over", "batch=1..8", "--over", "prompt=16,32", "-o", "-.csv"),
    "simulate": ("simulate", MODEL, DEVICE, "--rate", "5", "--requests", "8", "--gen-lengths", "uniform:2-8"),
    "plan": ("plan", MODEL, "--hardware", "l40s", "--rate", "1", "--max-devices", "2"),
    "kernel": ("kernel", "gemm", "h100-sxm", "M=1,16", "N=4096", "K=4096", "--measured", "31 us"),
    "hardware": ("hardware", DEVICE),
    "models": ("models", MODEL),
    "choose": ("choose", MODEL, DEVICE, "l40s"),
    "techniques": ("techniques", "sparsity"),
    "profiles": ("profiles", DEVICE),
}


@cache
def _options(name: str) -> list[str]:
    """The entries of OPTIONS that a command has."""
    entry = cli.get_command(click.Context(cli), name)
    assert entry is not None
    return sorted(OPTIONS.keys() & {option for parameter in entry.params for option in parameter.opts})


def options(random: random.Random, folder: Path) -> tuple[object, Run]:
    """A command with some of its options, one or two of whose texts are changed."""
    name = random.choice(("analyze",) * 6 + (*COMMANDS,) + ("kernel",) * 4)
    words = [word.replace("-.csv", str(folder / "sweep.csv")) for word in COMMANDS[name]]
    arguments = [*words[1:]]
    for option in random.sample(_options(name), min(random.choice((0, 1, 1, 2, 3)), len(_options(name)))):
        arguments += [option, OPTIONS[option]]
    for _ in range(random.choice((1, 1, 2))):
        place = random.randrange(len(arguments))
        if not arguments[place].startswith(str(folder)):
            arguments[place] = changed_text(random, arguments[place]) if random.random() < 0.7 else random.choice(WORDS)
    return [name, *arguments], lambda: command(name, *arguments)


@cache
def _specs() -> list[str]:
    """A text for every parameter of every technique, with its default or another allowed value."""
    required_values = {
        "draft": MODEL,
        "size": "32",
        "scheme": "gobo",
        "file": "lengths.txt",
        "phrases": "1000",
        "share": "0.25",
    }
    specs = []
    for name, kind in techniques().items():
        first = {f.name: required_values[f.name] for f in fields(kind) if f.default is MISSING}
        for f in (None, *fields(kind)):
            values = dict(first)
            if f and f.name not in first:
                values[f.name] = (declaration(f).choices or (f.default or 0.5,))[-1]
            specs.append(f"{name}:{','.join(f'{key}={value}' for key, value in values.items())}".removesuffix(":"))
    return specs


def technique(random: random.Random, folder: Path) -> tuple[object, Run]:  # noqa: ARG001
    """A changed text of a technique, to be parsed or analyzed with."""
    text = changed_text(random, random.choice(_specs()))
    return text, _analyze(MODEL, "--with", text) if random.random() < 0.3 else lambda: parse_technique(text)


TEXTS: Final[dict[str, tuple[Callable[[str], object], tuple[str, ...]]]] = {
    "precision": (parse_quantization, ("W4A16g128,down_proj=W8A16,layers.0-3=W16A16", "Q4_K_M,KVq8_0", "fp8KV8",
                                       "published,lm_head=W8A16", "Wnf4A16", "nvfp4", "W4A16g128s16z4")),
    "layout": (parse_layout, ("tp=2 pp=2 ep=4 dp=2", "tp=8", "tp=2 two-batch-overlap", "cp=2 ring")),
    "offload": (parse_offload, ("weights=0.5,kv=0.2@storage", "weights=0.5 sync")),
    "numbers": (lambda text: parse_numbers(text, where="--over"), ("1..256", "1..4096*2", "1,2,8", "16..64+16")),
    "lengths": (lambda text: parse_lengths(text, "prompt"), ("uniform:100-900", "lognormal:mean=512,p95=2048",
                                                             "lognormal:p50=100,p90=900", "sharegpt4", "512")),
}  # fmt: skip


def text(random: random.Random, folder: Path) -> tuple[object, Run]:  # noqa: ARG001
    """A changed text of an option's small language, such as a precision or a layout, to be parsed."""
    parse, examples = TEXTS[random.choice(sorted(TEXTS))]
    changed = changed_text(random, random.choice(examples))
    return changed, lambda: parse(changed)


LINK: Final = (
    "model=llama-3.1-8b&on=h100-sxm,l40s&batch=8&prompt=512&gen=64&tp=2&quant=W8A8&techniques=sparsity&skew=0.5"
    "&set=l40s:memory.bandwidth=2x&tab=compare"
)


def link(random: random.Random, folder: Path) -> tuple[object, Run]:  # noqa: ARG001
    """A changed link of the page, to be read."""
    from llmviewer.webapp.state import State

    changed = changed_text(random, LINK)
    return changed, lambda: State.of_link(changed)


@contextmanager
def _faults_of_page() -> Iterator[None]:
    """Raises the exception that the page logs when it answers with a line instead."""
    caught: list[BaseException] = []

    class Caught(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1]:
                caught.append(record.exc_info[1])

    log, handler = logging.getLogger("llmviewer.webapp"), Caught(logging.ERROR)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        if caught:
            raise caught[0]


def store(random: random.Random, folder: Path) -> tuple[object, Run]:  # noqa: ARG001
    """Values that a browser holds for the page: dropped models, devices, measurements and traces, and its controls."""
    from llmviewer.webapp.page_state import shown_state
    from llmviewer.webapp.payloads import packed
    from llmviewer.webapp.results import device_results, nearest_valid, parse_hardware_file, parse_model_file
    from llmviewer.webapp.state import State
    from llmviewer.webapp.views.timeline import DroppedTrace, timeline_of
    from llmviewer.webapp.views.uploads import scored_measurements

    def answered(state: State) -> object:
        return device_results(nearest_valid(state)[0])

    form = random.choice(("files", "pairs", "controls", "table", "trace"))
    if form == "controls":
        values = vars(State()) | {"techniques": (random.choice(_specs()),), "measured": "tpot=20ms", "tp": 2}
        content: Any = changed_tree(random, {key: value for key, value in values.items() if key != "files"})
        run: Run = lambda: answered(State.of(content if isinstance(content, dict) else {}))  # noqa: E731
    elif form == "table":
        content = changed_bytes(random, random.choice(MEASURED).encode())
        run = lambda: scored_measurements("rows.csv", content)  # noqa: E731
    elif form == "trace":
        text = json.dumps(changed_tree(random, {"traceEvents": _trace()}), skipkeys=True).encode()
        content = changed_bytes(random, text) if random.random() < 0.3 else text
        state = State(model=MODEL)
        run = lambda: timeline_of(DroppedTrace("trace.json", content), device_results(state)[0], state)  # noqa: E731
    else:
        name, device = random.choice(_yaml_files("hardware"))
        model = changed_tree(random, random.choice(_configs())) if random.random() < 0.5 else TINY
        device = changed_tree(random, device) if random.random() < 0.5 else device
        texts = [["tiny.json", json.dumps(model, skipkeys=True)], [name, yaml.dump(device, allow_unicode=True)]]
        content = texts
        if form == "files":
            run = lambda: packed([parse_model_file(*texts[0]), parse_hardware_file(*texts[1])])  # noqa: E731
        else:
            content = changed_tree(random, texts) if random.random() < 0.5 else texts
            link = f"model=file:tiny.json&on=file:{name}&prompt=64&gen=4"
            run = lambda: answered(shown_state(link, content))  # noqa: E731

    def watched() -> None:
        with _faults_of_page():
            run()

    return content, watched


KINDS: Final[dict[str, Callable[[random.Random, Path], tuple[object, Run]]]] = {
    function.__name__: function
    for function in (
        config, described, device, profile, scenario, timeline, checkpoint, gguf, measurements, arrivals, options,
        technique, text, link, store,
    )
}  # fmt: skip


# Checks


class Fault(Exception):  # noqa: N818  # of an input
    """A result that no input may have."""


def command(*arguments: str) -> None:
    """Runs a command of llmviewer and checks what it writes.

    Raises InputError if it refuses its input, and Fault if it writes neither a result nor a refusal of one line.
    """
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    lines = err.getvalue().splitlines()
    if code not in (0, 2):
        raise Fault(f"exit code {code}")
    if code == 2:
        _check_refusal("\n".join(lines).removeprefix("llmviewer: "))
        raise InputError(lines[0])
    if any("Warning" in line for line in lines):
        raise Fault(f"writes a warning: {lines[0]}")
    if out.getvalue().startswith("{"):
        _check_amounts(json.loads(out.getvalue(), parse_constant=_undefined), "")


def _undefined(text: str) -> None:
    raise Fault(f"{text} in the result")


def _check_amounts(value: Any, name: str) -> None:
    if isinstance(value, dict):
        for key, inside in value.items():
            _check_amounts(inside, key)
    elif isinstance(value, list):
        for inside in value:
            _check_amounts(inside, name)
    elif isinstance(value, int | float) and value < 0 and re.search(r"(_s|bytes|ops|parameters|tokens)$", name):
        raise Fault(f"{name} is {value} in the result")


def _check_refusal(text: str) -> None:
    if "\n" in text or not text.strip():
        raise Fault(f"a refusal must be one line; got {text[:400]!r}")
    if len(text) > MAX_TEXT:
        raise Fault(f"a refusal of {len(text)} characters: {text[:200]}")


class Hang(BaseException):
    """Raised by a timer in what takes too long."""


def _stop(*_: object) -> None:
    raise Hang


REFUSED: Final = "refused"  # as an input may be


def check(run: Run, *, strict: bool) -> str:
    """The fault of an input, or REFUSED; "" if it is used."""
    began = time.process_time()
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run()
    except InputError as error:
        try:
            _check_refusal(str(error))
        except Fault as fault:
            return str(fault)
        return _where(error.__cause__) if strict and error.__cause__ is not None else REFUSED
    except Hang:
        return f"more than {HANG_SECONDS} s"
    except Fault as fault:
        return re.sub(r"-?\d[\d.e+-]*", "N", str(fault))
    except BaseException as error:  # whatever an input causes
        if isinstance(error, KeyboardInterrupt):
            raise
        return _where(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    elapsed_s = time.process_time() - began
    return f"more than {MAX_SECONDS:.0f} s" if elapsed_s > MAX_SECONDS else ""


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "llmviewer" in f.filename][-3:]
    return f"{type(error).__name__}: {str(error)[:120]!r} at {' > '.join(places)}"


def fuzz(kinds: list[str], seeds: range, *, strict: bool, verbose: bool = False) -> Counter[tuple[str, str]]:
    """Number of inputs by (kind, fault or REFUSED); the first input of each fault is printed."""
    faults: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for number, (seed, kind) in enumerate(itertools.product(seeds, kinds)):
            place = Path(folder) / str(number)
            place.mkdir()
            arguments, run = KINDS[kind](random.Random(f"{kind} {seed}"), place)  # noqa: S311
            if verbose:
                print(kind, seed, arguments, flush=True)
            if fault := check(run, strict=strict):
                faults[kind, fault] += 1
                if faults[kind, fault] == 1 and fault != REFUSED:
                    print(f"--kind {kind} --seed {seed}: {fault}", flush=True)
    return faults


def run(arguments: list[str]) -> int:
    """Runs the fuzzer with command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", choices=KINDS, help="may be repeated; all if not given")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--runs", type=int, default=100, help="inputs of each kind")
    parser.add_argument("--strict", action="store_true")
    parsed = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))

    kinds, began = parsed.kind or list(KINDS), time.monotonic()
    fault_counts = fuzz(
        kinds, range(parsed.seed, parsed.seed + parsed.runs), strict=parsed.strict, verbose=parsed.runs == 1
    )
    refused = Counter({kind: number for (kind, fault), number in fault_counts.items() if fault == REFUSED})
    print(f"refused, of {parsed.runs} each: {', '.join(f'{kind} {refused[kind]}' for kind in kinds)}")
    faults = fault_counts.total() - refused.total()
    print(f"{parsed.runs * len(kinds)} inputs in {time.monotonic() - began:.0f} s: {faults} at fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
