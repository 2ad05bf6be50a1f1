"""Indexes of data files say what the files say: parsed.json of folders, and hardware/index.json.

`python tests/test_indexes.py` remakes them.
"""

import json
import subprocess
import sys

import pytest

from llmviewer import parsed_files
from llmviewer._layout import data_dir
from llmviewer.devices.files import hardware_names, hardware_yaml, load_hardware
from llmviewer.devices.index import DeviceRow, device_rows, index_json
from llmviewer.documents import parse_yaml, parsed_folder, read_yaml
from llmviewer.parsed_files import FOLDERS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_parsed_files_are_those_in_yaml(folder):
    kept = (folder / "parsed.json").read_text(encoding="utf-8")
    assert kept == parsed_folder(folder), f"`python tests/test_indexes.py` remakes {folder.name}/parsed.json"


def test_the_index_of_devices_is_that_of_their_files():
    kept = (data_dir("hardware") / "index.json").read_text(encoding="utf-8")
    assert kept == index_json(), "`python tests/test_indexes.py` remakes hardware/index.json"
    assert device_rows() == [DeviceRow.of(load_hardware(name)) for name in hardware_names()]


def test_lists_have_the_devices_of_a_user(tmp_path, monkeypatch):
    text = hardware_yaml("h100-sxm", "h100-sxm").replace("3352 GB/s", "6704 GB/s")
    (tmp_path / "h100-sxm.yaml").write_text(text)
    (tmp_path / "mine.yaml").write_text(hardware_yaml("a10", "mine"))
    monkeypatch.setenv("LLMVIEWER_HARDWARE_PATH", str(tmp_path))
    rows = {row.name: row for row in device_rows()}
    assert rows["h100-sxm"].bandwidth == 6.704e12
    assert rows["mine"].matrix == rows["a10"].matrix


def test_an_edited_file_is_read_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(parsed_files, "FOLDERS", (tmp_path,))
    (tmp_path / "a.yaml").write_text("bandwidth: 1e12\n")
    (tmp_path / "parsed.json").write_text(parsed_folder(tmp_path))
    assert json.loads((tmp_path / "parsed.json").read_text())["a"]["document"] == {"bandwidth": 1e12}
    read = []
    monkeypatch.setattr(
        "llmviewer.documents.parse_yaml", lambda text, path: read.append(text) or parse_yaml(text, path)
    )
    assert read_yaml(tmp_path / "a.yaml").data == {"bandwidth": 1e12}
    assert not read
    (tmp_path / "a.yaml").write_text("bandwidth: 2e12\n")
    assert read_yaml(tmp_path / "a.yaml").data == {"bandwidth": 2e12}
    assert read == ["bandwidth: 2e12\n"]


def test_an_analysis_parses_no_yaml():
    code = "import sys, llmviewer; llmviewer.analyze('llama-2-7b', 'h100-sxm'); print('yaml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


if __name__ == "__main__":
    for shipped in FOLDERS:
        (shipped / "parsed.json").write_text(parsed_folder(shipped), encoding="utf-8")
    (data_dir("hardware") / "index.json").write_text(index_json(), encoding="utf-8")
