"""Damaged files end in one line that says where; limits hold before memory is taken."""

import gzip
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from llmviewer.cli import main
from llmviewer.documents import MAX_COUNT, Section, parse_yaml, read_json
from llmviewer.errors import InputError
from llmviewer.model_files import load_model
from llmviewer.operators.base import Operator, Weight
from llmviewer.precision import FP16
from llmviewer.timelines import reading
from llmviewer.timelines.reading import read_timeline

TRACE = "Start (ns),Duration (ns),Name\n"
KERNEL = {"cat": "kernel", "name": "a", "pid": 0, "ts": 1, "dur": 1}


def refusal(capsys, *arguments):
    """The one line on standard error with which a command refuses its input."""
    assert main([*map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("name", "text", "where"),
    [
        ("short.csv", f"{TRACE}1,2,a\n\n1,2\n", ":4: has no Name; got 1,2"),
        ("nan.csv", f"{TRACE}1,nan,a\n", ":2: a launch must have finite times"),
        ("inf.csv", f"{TRACE}inf,1,a\n", ":2: a launch must have finite times"),
        ("past.csv", "Kernel_Name,Start_Timestamp,End_Timestamp\na,9,8\n", ":2: a launch must have finite times"),
        ("digits.csv", f"{TRACE}{'9' * 400},1,a\n", ":2: a launch must have finite times"),
        ("sums.csv", "Name,Instances,Total Time (ns)\na,inf,1\n", ":2: launches and their time must be finite"),
        ("cell.csv", f'{TRACE}1,2,"{"x" * 200_000}"\n', ":2: is not a row of CSV: field larger than field limit"),
        ("null.json", json.dumps([KERNEL, KERNEL | {"ts": None}]), ": event 2: a kernel must have name, ts and dur"),
        ("inf.json", '[{"cat": "kernel", "name": "a", "ts": Infinity, "dur": 1}]', ": event 1: a kernel must have"),
        ("huge.json", json.dumps([KERNEL | {"dur": 10**400}]), ": event 1: a kernel must have name, ts and dur"),
        ("digits.json", f'[{{"ts": {"9" * 5000}}}]', ": is not valid JSON, perhaps cut off: Exceeds the limit"),
        ("cut.json", json.dumps([KERNEL])[:-9], ": is not valid JSON, perhaps cut off"),
    ],
)
def test_a_damaged_trace_is_refused_with_its_row(tmp_path, name, text, where):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=re.escape(f"{tmp_path / name}{where}")):
        read_timeline(tmp_path / name, "decode")


@pytest.mark.parametrize("name", [None, b"\xff", 7])
def test_a_launch_in_a_database_has_a_name(tmp_path, name):
    path = tmp_path / "n.sqlite"
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE StringIds (id INTEGER, value)")
        made.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, demangledName)")
        made.execute("INSERT INTO StringIds VALUES (1, ?)", [name])
        made.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 1)")
        made.commit()
    with pytest.raises(InputError, match="row 1 of CUPTI_ACTIVITY_KIND_KERNEL: must have a name, start and end"):
        read_timeline(path, "decode")


def test_a_small_file_that_unpacks_to_a_large_one_is_not_read(tmp_path, capsys):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * 3_000_000))
    line = refusal(capsys, "timeline", path, "llama-68m", "h100-sxm", "--max-bytes", "2MB")
    assert line.endswith("bomb.json.gz: must have at most 2,000,000 bytes, unpacked; --max-bytes reads larger files")


@pytest.mark.parametrize("piece", [1, 7, 64])
def test_a_trace_is_read_in_pieces_of_any_size(tmp_path, monkeypatch, piece):
    """Events, names in UTF-8 and the rank before them lie across pieces; an invalid event is named by its place."""
    kernels = [KERNEL | {"name": f"µ{i} ] }}", "ts": i, "args": {"stream": i % 2}} for i in range(9)]
    header = {"distributedInfo": {"backend": "nccl", "rank": 5, "pg_config": [{"ranks": [0]}]}}
    text = json.dumps(header | {"traceEvents": kernels}, ensure_ascii=False, indent=1)
    path = tmp_path / "t.json"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(reading, "_PIECE", piece)
    seen = []
    recording = read_timeline(path, "decode", progress=lambda finished, total: seen.append((finished, total)))
    assert recording.names == tuple(one["name"] for one in kernels)
    assert recording.streams == tuple("010101010")
    assert recording.rank == 5
    assert seen[-1] == (len(text.encode()),) * 2
    assert [finished for finished, _ in seen] == sorted(finished for finished, _ in seen)
    path.write_text(text.replace('"ts": 8', '"ts": x'), encoding="utf-8")
    place = text.index('"ts": 8') + len('"ts": ')
    with pytest.raises(InputError, match=f"Expecting value, character {place:,}$"):
        read_timeline(path, "decode")


def test_an_endless_event_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_MAX_EVENT_CHARS", 1000)
    monkeypatch.setattr(reading, "_PIECE", 100)
    path = tmp_path / "t.json"
    path.write_text(f'[{{"name": "{"x" * 2000}"}}]')
    with pytest.raises(InputError, match=r"cut off: Unterminated string starting at, character 10$"):
        read_timeline(path, "decode")


def test_a_truncated_gzip_file_is_refused(tmp_path):
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(json.dumps([KERNEL] * 100).encode())[:-20])
    with pytest.raises(InputError, match=re.escape(f"{path}: cannot be read: Compressed file ended")):
        read_timeline(path, "decode")


def test_text_in_utf_16_as_powershell_writes_it_is_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"{TRACE}1,2,a\n", encoding="utf-16")
    assert read_timeline(path, "decode").names == ("a",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &x [*x]", "nested too deeply"),
        ("a: &x {b: *x}", "nested too deeply"),
        (f"a: {'[' * 300}{']' * 300}", "nested too deeply"),
        ("\n".join(["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 20)}]" for n in range(1, 9))]),
         "must have at most 2000000 values, with those of its aliases"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor for the tag"),
        ("a: !!set {b}", "could not determine a constructor for the tag"),
        ("a: !!bool maybe", "'maybe' is no tag:yaml.org,2002:bool"),
    ],
)  # fmt: skip
def test_yaml_is_data_of_limited_extent(text, problem):
    with pytest.raises(InputError, match=re.escape(problem)):
        parse_yaml(text, Path("f.yaml"))


def test_numbers_are_decimal_and_nothing_is_merged_as_in_yaml_1_2():
    assert parse_yaml("<<: 1", Path("f.yaml")).data == {"<<": 1}  # no key merges mappings
    assert parse_yaml("{a: 010, b: 1e3, c: .5, d: 1_000, e: -.inf}", Path("f.yaml")).data == {
        "a": 10, "b": 1000.0, "c": 0.5, "d": "1_000", "e": float("-inf")
    }  # fmt: skip


def test_json_is_of_limited_depth(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text(f'{{"a": {"[" * 300}{"]" * 300}}}')
    with pytest.raises(InputError, match="is not readable JSON: nested too deeply"):
        read_json(path)


def test_counts_of_layers_are_limited():
    section = Section({"num_hidden_layers": MAX_COUNT, "loops": 2}, "f")
    assert section.count("num_hidden_layers") == MAX_COUNT
    with pytest.raises(InputError, match=f"num_hidden_layers: must be at most {MAX_COUNT // 2}; got {MAX_COUNT}"):
        section.count("num_hidden_layers", times=section.count("loops"))


@pytest.mark.parametrize("shape", [(4, 0), (4, -1), (2**40, 2**40)])
def test_an_operator_has_positive_sizes_that_are_counted_exactly(shape):
    weight = Weight(name="w", shape=shape, format=FP16)
    with pytest.raises(InputError, match=r"w must have positive sizes, and \d+ elements at most; got"):
        Operator(name="a", inputs=(), outputs=(), weights=(weight,)).check_sizes()


def test_fields_that_are_not_positive_are_named_with_a_size_that_is_not(tmp_path):
    path = tmp_path / "config.json"
    config = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "vocab_size": 9, "image_size": 32}
    vision = config | {"patch_size": 8, "num_hidden_layers": 1, "mlp_ratio": 0}
    path.write_text(json.dumps({"model_type": "dinov2", **vision}))
    with pytest.raises(InputError, match=r"config\.json.*mlp_ratio"):
        load_model(str(path))


def test_long_values_in_errors_are_shortened(capsys):
    assert len(refusal(capsys, "analyze", "x" * 5000, "h100-sxm")) < 700
    assert len(refusal(capsys, "analyze", "llama-68m", "h100-sxm", "--with", ",".join(["sparsity"] * 2000))) < 1100
    assert len(refusal(capsys, "analyze", "llama-68m", "h100-sxm", "--with", "word " * 2000)) < 1100


def test_an_error_is_one_printable_line():
    assert str(InputError("a\n  b\x1b[31m")) == r"a b\x1b[31m"


@pytest.mark.parametrize(
    "text",
    [
        "model: os:abort\nhardware: h100-sxm",
        "model: llama-68m\nhardware: h100-sxm\nwith: ['speculative:draft=os:abort']",
        "model: llama-68m\nhardware: h100-sxm\nwith: [{speculative: {draft: 'os:abort'}}]",
        "model: llama-68m\nhardware: h100-sxm\nwith: ['prompt-compression:scorer=os:abort']",
    ],
)
@pytest.mark.parametrize("command", ["analyze", "sweep"])
def test_a_scenario_never_runs_code(tmp_path, capsys, text, command):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    line = refusal(capsys, command, "--scenario", path)
    assert re.search(r"s\.yaml: (model|with): must not name code, which a file never runs; got 'os:abort'", line)


@pytest.mark.parametrize("body", ["raise SystemExit(3)", "def f(): raise SystemExit(3)"])
def test_traced_code_that_exits_is_reported_in_one_line(tmp_path, capsys, monkeypatch, body):
    pytest.importorskip("torch")
    (tmp_path / "ends_it.py").write_text(body)
    monkeypatch.chdir(tmp_path)
    assert "SystemExit: 3" in refusal(capsys, "analyze", "ends_it:f", "h100-sxm")
