"""Files of other profilers than torch's, each by its documented schema, against the same launches as a trace."""

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.timelines.against import timeline
from llmviewer.timelines.reading import read_timeline

LAYERS = 32
LAYER = (  # of a decode step on LLaMA 3.1 8B [ns]
    ("void vllm::fused_add_rms_norm_kernel<c10::BFloat16>", 3000), ("nvjet_qkv", 20000),
    ("void flash_fwd_splitkv_kernel<128>", 10000), ("nvjet_o", 10000), ("nvjet_gate_up", 70000),
    ("void vllm::act_and_mul_kernel<c10::BFloat16>", 3000), ("nvjet_down", 40000),
)  # fmt: skip
STEP_NS = LAYERS * sum(taken for _, taken in LAYER)


def launches(steps, pause=1000):
    """(name, start, end) one after another, with a pause before each step. [ns]"""
    now = 10**12
    for _ in range(steps):
        now += pause
        for name, taken in LAYER * LAYERS:
            yield name, now, now + taken
            now += taken


@pytest.fixture(scope="module")
def llama():
    return analyze("llama-3.1-8b", "h100-sxm", batch=8)


def database(path, kernels, *, copies=(), graphs=(), process=True):
    """Tables and columns of the SQLite Schema Reference of Nsight Systems that matter here.

    kernels  (process, device, name, start, end); copies and graphs (process, device, start, end)
    """
    columns = "start INT NOT NULL, end INT NOT NULL, deviceId INT NOT NULL" + ", globalPid INT" * process
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
        made.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns}, demangledName INT, shortName INT)")
        made.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({columns}, copyKind INT, bytes INT)")
        made.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({columns}, graphId INT)")
        ids = {name: number for number, name in enumerate(dict.fromkeys(name for _, _, name, *_ in kernels), 1)}
        made.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, name) for name, number in ids.items()])

        def insert(table, rows, extra):
            for pid, device, start, end, *more in rows:
                values = [start, end, device, *([pid] * process), *(more or extra)]
                made.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)

        of = [(pid, device, start, end, ids[name], 0) for pid, device, name, start, end in kernels]
        insert("CUPTI_ACTIVITY_KIND_KERNEL", of, ())
        insert("CUPTI_ACTIVITY_KIND_MEMCPY", copies, (1, 64))
        insert("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", graphs, (7,))
        made.commit()
    return path


def trace(path, steps=3):
    events = [
        {"cat": "kernel", "name": name, "ts": start / 1e3, "dur": (end - start) / 1e3, "args": {"device": 0}}
        for name, start, end in launches(steps)
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return read_timeline(path, "decode")


def same(ours, theirs):
    assert ours.names == theirs.names
    np.testing.assert_allclose(ours.start_s, theirs.start_s)
    np.testing.assert_allclose(ours.duration_s, theirs.duration_s, rtol=1e-4)


@pytest.mark.parametrize("process", [True, False])
def test_nsight_systems_database_equals_the_trace(tmp_path, process):
    kernels = [(16777216, 0, *launch) for launch in launches(3)]
    same(read_timeline(database(tmp_path / "t.sqlite", kernels, process=process), "decode"), trace(tmp_path / "t.json"))


def test_each_process_of_a_database_has_devices_of_its_own(tmp_path):
    """As ranks do that see one device each, which is number 0 to both; copies are launches too."""
    kernels = [(pid, 0, *launch) for pid, steps in ((1, 2), (2, 3)) for launch in launches(steps)]
    found = read_timeline(database(tmp_path / "t.sqlite", kernels, copies=[(2, 0, 5, 9)]), "decode")
    assert (len(found.names), found.devices) == (3 * LAYERS * len(LAYER) + 1, 2)
    assert found.names[0] == "Memcpy"


def test_graphs_without_their_kernels_and_other_databases_are_refused(tmp_path):
    path = database(tmp_path / "t.sqlite", [(1, 0, "nvjet", 1, 2)], graphs=[(1, 0, 3, 9)])
    with pytest.raises(InputError, match=r"without their kernels; record with --cuda-graph-trace=node$"):
        read_timeline(path, "decode")
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as other:
        other.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT)")
        other.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1)")
        other.commit()
    with pytest.raises(InputError, match=r"other\.sqlite: must be a database from `nsys export --type sqlite`"):
        read_timeline(tmp_path / "other.sqlite", "decode")


def test_rocprofv3_trace_equals_the_trace(tmp_path):
    """Columns as rocm.docs.amd.com/projects/rocprofiler-sdk shows those of kernel_trace.csv."""
    rows = ['"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Name","Start_Timestamp","End_Timestamp"']
    rows += [f'"KERNEL_DISPATCH","Agent 4",1,77,{i},"{n}",{a},{b}' for i, (n, a, b) in enumerate(launches(3))]
    rows.append('"KERNEL_DISPATCH","Agent 5",1,77,0,"other",1,2')
    (tmp_path / "t.csv").write_text("\n".join(rows))
    found = read_timeline(tmp_path / "t.csv", "decode")
    same(found, trace(tmp_path / "t.json"))
    assert found.devices == 2


def test_sums_of_rocprofv3(tmp_path, llama):
    """Three passes; columns as kernel_stats.csv has them."""
    rows = ['"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"']
    rows += [f'"{name}",{3 * LAYERS},{3 * LAYERS * taken},{taken},1.0,{taken},{taken},0' for name, taken in LAYER]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    found = timeline(tmp_path / "t.csv", llama)
    assert found.passes.passes == 3
    assert found.passes.busy_s == pytest.approx(1e-9 * STEP_NS)


def node(name, time_us, invocations=1, children=()):
    entry = {"name": name, "cuda_time_us": time_us, "pct_cuda_time": 1.0, "invocations": invocations}
    return {"entry": entry, "children": list(children)}


def layerwise():
    """The tree of modules and kernels of a step, and a module that launches none."""
    kernels = [node(name, LAYERS * taken / 1e3, LAYERS) for name, taken in LAYER]
    model = node("LlamaForCausalLM", STEP_NS / 1e3, 1, [node("LlamaDecoderLayer", STEP_NS / 1e3, LAYERS, kernels)])
    return {"metadata": {"num_running_seqs": 8}, "summary_stats": [model, node("Sampler", 0.0)], "model_stats": []}


def test_profiles_of_vllms_layers(tmp_path, llama):
    """A prompt and two steps of a file of examples/offline_inference/profiling.py, and a step by itself."""
    one = layerwise()
    (tmp_path / "t.json").write_text(json.dumps({"context": {}, "prefill": one, "decode_1": one, "decode_2": one}))
    (tmp_path / "one.json").write_text(json.dumps(one))
    for file, phase, passes in (("t", "decode", 2), ("t", "prefill", 1), ("one", "decode", 1)):
        found = timeline(tmp_path / f"{file}.json", llama, phase=phase)
        assert (found.passes.passes, found.idle_s) == (passes, None)
        assert {k.name: (k.launches, k.measured_s) for k in found.kernels} == {
            name: (LAYERS, pytest.approx(1e-9 * LAYERS * taken)) for name, taken in LAYER
        }


@pytest.mark.parametrize(
    ("document", "wrong"),
    [
        ({"prefill": {"summary_stats": []}}, "has no decode; got prefill"),
        ({"decode_1": {"summary_stats": [{"entry": {}}]}}, "summary_stats must be a tree of entry and children"),
    ],
)
def test_unusable_layer_profiles_are_refused(tmp_path, capsys, document, wrong):
    (tmp_path / "t.json").write_text(json.dumps(document))
    assert main(["timeline", str(tmp_path / "t.json"), "llama-3.1-8b", "h100-sxm"]) == 2
    said = capsys.readouterr().err
    assert wrong in said
    assert said.count("\n") == 1


def test_streams_and_calls_of_a_database(tmp_path):
    """Launches by correlation within their process, and calls in which the host waited; other values are left out."""
    path = tmp_path / "t.sqlite"
    process, thread = 5 << 24, (5 << 24) + 77
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
        columns = "start, end, deviceId, globalPid, streamId, correlationId, demangledName"
        made.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({columns})")
        made.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, correlationId, globalTid, nameId)")
        names = [(1, "nvjet"), (2, "cudaLaunchKernel_v7000"), (3, "cudaStreamSynchronize_v3020")]
        made.executemany("INSERT INTO StringIds VALUES (?, ?)", names)
        made.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, ?, ?, ?, 1)",
            [(5000, 6000, process, 7, 1), (9000, 9500, process, 13, 2), (9600, 9700, 6 << 24, 7, 2)],
        )
        made.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)",
            [(4000, 4100, 1, thread, 2), (8000, 8100, 2, thread, 2), (6100, 7900, 3, thread, 3),
             ("x", 1, 4, thread, 3), (1, 2, None, thread, 2)],
        )  # fmt: skip
        made.commit()
    found = read_timeline(path, "decode")
    assert found.streams == ("7", "13")
    assert found.called_s == pytest.approx([4e-6, 8e-6])
    assert found.waits_s.tolist() == [pytest.approx([6.1e-6, 7.9e-6])]
    assert [device.names for device in found.others] == [("nvjet",)]
    assert np.isnan(found.others[0].called_s).all()  # of another process, whose call was not recorded


def test_calls_without_their_columns_are_left_out(tmp_path):
    path = database(tmp_path / "t.sqlite", [(1, 0, "nvjet", 10, 20)])
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, nameId)")
        made.commit()
    assert np.isnan(read_timeline(path, "decode").called_s).all()


def test_streams_of_tables(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("Start (ns),Duration (ns),Device,Strm,Name\n1,2,a (0),7,x\n5,2,a (0),13,y\n")
    assert read_timeline(path, "decode").streams == ("7", "13")
    path.write_text("Kernel_Name,Agent_Id,Queue_Id,Stream_Id,Start_Timestamp,End_Timestamp\nx,1,2,3,1,4\n")
    assert read_timeline(path, "decode").streams == ("3",)
