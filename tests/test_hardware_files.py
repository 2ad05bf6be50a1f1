"""Hardware files of a user's own: the schema, --hardware-path, --check and --local."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from llmviewer import afd, analyze, disaggregate
from llmviewer.cli import main
from llmviewer.devices.checks import CHECKS, name_clashes, violations
from llmviewer.devices.files import (
    changes_by_device,
    hardware_aliases,
    hardware_file,
    hardware_names,
    hardware_yaml,
    load_hardware,
)
from llmviewer.devices.keys import KINDS, PLAIN, SECTIONS, STATUSES, TOPOLOGIES
from llmviewer.devices.local import draft
from llmviewer.documents import normalized
from llmviewer.errors import InputError
from llmviewer.units import parse

CHIP = """\
name: chip
title: A chip
vendor: nobody
kind: accelerator
architecture: none
released: 2024
status: announced
aliases: [chippy]
sources:
  paper: {title: A paper, year: 2024, url: https://example.org/paper}
clock: {source: paper, base: 1 GHz, boost: 2 GHz, matrix: 1.5 GHz, memory: 1 GHz}
matrix: {source: paper, bf16: 150 TOP/s, fp16: 150 TOP/s, fp8: 300 TOP/s, int8: 300 TOP/s, int4: 600 TOP/s}
sparse: {source: paper, fp16: 300 TOP/s}
vector: {source: paper, fp32: 20 TOP/s, fp16: 20 TOP/s}
memory:
  source: paper
  type: HBM3
  capacity: 64 GiB
  usable: 63 GiB
  bandwidth: 1 TB/s
  bus_width: 1000
  data_rate: 8 Gbit/s
registers: {source: paper, capacity: 10 MiB, bandwidth: 100 TB/s}
l2: {source: paper, capacity: 20 MiB, bandwidth: 10 TB/s}
cores: {source: paper, count: 100, matrix_fp16_per_clock: 1000, vector_fp32_per_clock: 100}
scale_up: {source: paper, type: links, bandwidth: 100 GB/s, latency: 2 us, devices: 8, topology: torus2d}
scale_out: {source: paper, type: Ethernet, bandwidth: 50 GB/s, latency: 0.005 ms, topology: switch}
host: {source: paper, type: PCIe 5.0 x16, bandwidth: 63 GB/s, latency: 900 ns}
power: {source: paper, tdp: 500 W, idle: 70 W}
price: {source: paper, purchase: 30000 USD, cloud: 2.5 USD/h, date: 2024-06}
"""


@pytest.fixture
def chip(tmp_path):
    def write(old="", new="", name="chip"):
        assert old in CHIP
        path = tmp_path / f"{name}.yaml"
        path.write_text(CHIP.replace(old, new, 1).replace("name: chip", f"name: {name}"))
        return str(path)

    return write


@pytest.fixture
def folder(chip, monkeypatch):
    path = Path(chip()).parent
    monkeypatch.setenv("LLMVIEWER_HARDWARE_PATH", str(path))
    return path


def run(capsys, *arguments):
    code = main(arguments)
    return code, *capsys.readouterr()


def test_every_block_of_a_file_is_read(chip):
    device = load_hardware(chip())
    assert device.fact("clock.matrix") == 1.5e9
    assert device.fact("memory.data_rate") == 8e9
    assert device.fact("scale_up.latency") == pytest.approx(2e-6)
    assert device.fact("scale_out.latency") == pytest.approx(5e-6)
    assert device.fact("host.latency") == pytest.approx(9e-7)
    assert device.fact("scale_up.devices") == 8
    assert device.fact("power.idle") == 70
    assert device.fact("price.purchase") == 30000
    assert device.fact("price.cloud") == 2.5


def test_missing_hardware_value_is_refused_with_a_hint(chip):
    with pytest.raises(InputError) as error:
        load_hardware(chip()).fact("storage.bandwidth")
    assert str(error.value) == (
        "chip has no storage.bandwidth in its file; add it to your own hardware file or give "
        "--hardware-set storage.bandwidth=VALUE"
    )
    assert load_hardware(chip(), ["storage.bandwidth=5 GB/s"]).fact("storage.bandwidth") == 5e9


def test_what_if_prefix_is_a_device_name_alias_or_file(chip):
    path, loaded = chip(), load_hardware("l4")
    for changes in (["chip:power.tdp=2x", "l4:power.tdp=3x"], [f"{path}:power.tdp=2x", "nvidia-l4:power.tdp=3x"]):
        assert changes_by_device([path, loaded], changes) == [("power.tdp=2x",), ("power.tdp=3x",)]
    with pytest.raises(InputError, match=r"^t4:power\.tdp=2x: t4 must be one of the devices given$"):
        changes_by_device([path], ["t4:power.tdp=2x"])


def test_what_ifs_accept_a_device_prefix_in_every_function():
    change = ["h100-sxm:memory.bandwidth=2x"]
    alone, both = (analyze("llama-3.1-8b", "h100-sxm", hardware_set=one) for one in (change, ["memory.bandwidth=2x"]))
    assert alone.generation == both.generation
    pair = disaggregate("llama-3.1-8b", "h100-sxm", "l40s", hardware_set=change)
    assert pair.prefill.hardware.changes == ("memory.bandwidth=2x",)
    assert pair.decode.hardware.changes == ()
    asked = {"attention_layout": "dp=8", "expert_devices": 8, "batch": 64, "hardware_set": ["h20:memory.bandwidth=2x"]}
    sides = afd("deepseek-v3", "h200-sxm", "h20-sxm", **asked)
    assert (sides.attention.hardware.changes, sides.experts.hardware.changes) == ((), ("memory.bandwidth=2x",))
    with pytest.raises(InputError, match=r"^l4:power\.tdp=2x: l4 must be one of the devices given$"):
        analyze("llama-3.1-8b", "h100-sxm", hardware_set=["l4:power.tdp=2x"])
    with pytest.raises(InputError) as error:
        load_hardware("l4", ["l4:power.tdp=2x"])
    assert str(error.value) == "l4:power.tdp=2x: a single device cannot be changed here; leave out l4:"


# What goes with a what-if of the chip above, whose clock is another one for its matrix units, and by how much.
FOLLOWS = [
    ("cores.count=2x", {"matrix": 2, "sparse": 2, "vector": 2}),
    ("clock.boost=3x", {"vector": 3}),
    ("clock.matrix=3 GHz", {"matrix": 2, "sparse": 2}),
    ("cores.matrix_fp16_per_clock=500", {"matrix": 0.5, "sparse": 0.5}),
    ("cores.vector_fp32_per_clock=4x", {"vector": 4}),
    ("memory.bus_width=2x", {"memory.bandwidth": 2}),
    ("memory.data_rate=4 Gbit/s", {"memory.bandwidth": 0.5}),
    ("memory.bandwidth=2x", {}),
]


@pytest.mark.parametrize(("change", "times"), FOLLOWS)
def test_what_ifs_on_clocks_and_cores_scale_the_rates(chip, change, times):
    own, other = load_hardware(chip()), load_hardware(chip(), [change])
    key = change.partition("=")[0]
    for name, value in other.numbers.items():
        ratio = times.get(name, times.get(name.partition(".")[0], 1))
        assert name == key or value == pytest.approx(ratio * own.numbers[name]), name
    assert bool(other.derived_changes) == bool(times)
    assert not set(violations(other)) - set(violations(load_hardware(chip(), ["memory.bandwidth=2x"])))


def test_explicit_what_ifs_override_derived_rates(chip):
    changes = ["matrix.fp16=200 TOP/s", "cores.count=2x", "memory.bus_width=2x", "memory.bandwidth=900 GB/s"]
    own, other = load_hardware(chip()), load_hardware(chip(), changes)
    assert other.fact("matrix.fp16") == 200e12
    assert other.fact("matrix.fp8") == 2 * own.fact("matrix.fp8")
    assert other.bandwidth() == 900e9
    assert other.derived_changes == ("matrix rates 2x", "sparse rates 2x", "vector rates 2x")


def test_cores_of_a_file_without_clocks_bring_their_rates(chip):
    bare = chip("clock: {source: paper, base: 1 GHz, boost: 2 GHz, matrix: 1.5 GHz, memory: 1 GHz}\n", "")
    assert load_hardware(bare, ["cores.count=2x"]).fact("matrix.fp8") == 2 * load_hardware(bare).fact("matrix.fp8")


@pytest.mark.parametrize(
    ("change", "instead"),
    [
        ("l2.bandwidth=2x", "memory.bandwidth"),
        ("clock.memory=2x", "memory.bandwidth"),
        ("clock.base=2x", "matrix.bf16 or vector.fp32"),
        ("power.idle=2x", "power.tdp"),
    ],
)
def test_what_if_without_effect_is_refused(chip, change, instead):
    with pytest.raises(InputError) as error:
        load_hardware(chip(), [change])
    assert str(error.value) == (f"{change}: no number of chip that is used depends on it; set {instead}")


def test_rates_that_are_no_such_product_do_not_follow(chip):
    odd = chip("matrix_fp16_per_clock: 1000", "matrix_fp16_per_clock: 1500")
    with pytest.raises(InputError, match=r"set matrix\.fp16 or matrix\.bf16$"):
        load_hardware(odd, ["cores.matrix_fp16_per_clock=2x"])


def test_notes_state_the_effect_of_a_what_if():
    found = analyze("gpt2", "a100-sxm-80gb", hardware_set=["memory.data_rate=2x", "l2.capacity=2x"])
    plain = analyze("gpt2", "a100-sxm-80gb")
    assert found.hardware.bandwidth() == 2 * plain.hardware.bandwidth()
    assert found.phases.decode.total.bound_time_s < plain.phases.decode.total.bound_time_s
    assert "derived from these what-ifs: memory.bandwidth 2x" in found.notes
    assert any(
        note.startswith("l2.capacity=2x: on-chip capacities affect only the tile sizes of attention")
        for note in found.notes
    )


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (
            "torus2d", "star",
            "scale_up.topology: must be one of switch, mesh, cube, ring, torus2d, torus3d, pair; got 'star'",
        ),
        (
            "latency: 2 us", "latency: 2 uHz",
            "scale_up.latency: must be a positive number and a unit in s, such as '2 s'; got '2 uHz'",
        ),
        (
            "data_rate: 8 Gbit/s", "data_rate: 8 GB/s",
            "memory.data_rate: must be a positive number and a unit in bit/s, such as '21 Gbit/s'; got '8 GB/s'",
        ),
        (
            "capacity: 64 GiB", "capacity: 64 mB",
            "memory.capacity: must be a positive number and a unit in B, such as '80 GB'; got '64 mB'",
        ),
        (
            "cloud: 2.5 USD/h", "cloud: 2.5 USD",
            "price.cloud: must be a positive number and a unit in USD/h, such as '2.5 USD/h'; got '2.5 USD'",
        ),
    ],
)  # fmt: skip
def test_invalid_hardware_value_is_refused_in_one_line(chip, old, new, error):
    path = chip(old, new)
    with pytest.raises(InputError) as raised:
        load_hardware(path)
    assert str(raised.value) == f"{path}: {error}"


# Each alters one number of a file that is right, and names the line that must come of it.
WRONG = [
    ("fp8: 300", "fp8: 100", "matrix.fp8: must not be below matrix.fp16, whose type is wider"),
    ("int4: 600", "int4: 200", "matrix.int4: must not be below matrix.int8, whose type is wider"),
    ("fp32: 20 TOP/s, fp16: 20", "fp32: 20 TOP/s, fp16: 200", "vector.fp16: must not be above matrix.fp16"),
    ("fp8: 300 T", "fp8: 30 E", "matrix.fp8: its ridge point, 3e+07 OP/B, must be between 0.01 and 10000"),
    ("sparse: {source: paper, fp16: 300", "sparse: {source: paper, fp16: 150",
     "sparse.fp16: must be twice matrix.fp16, or have a note with the reason"),
    ("sparse: {source: paper, fp16", "sparse: {source: paper, tf32", "sparse.tf32: there is no matrix.tf32"),
    ("matrix_fp16_per_clock: 1000", "matrix_fp16_per_clock: 1024",
     "matrix.fp16: must be cores.count x cores.matrix_fp16_per_clock x clock.matrix = 153.6 TOP/s; got 150 TOP/s"),
    ("vector_fp32_per_clock: 100", "vector_fp32_per_clock: 128",
     "vector.fp32: must be cores.count x cores.vector_fp32_per_clock x clock.boost = 25.6 TOP/s; got 20 TOP/s"),
    ("matrix: 1.5 GHz", "matrix: 2 GHz", "clock.matrix: equals the boost clock; leave it out"),
    ("bus_width: 1000", "bus_width: 1024",
     "memory.bandwidth: must be memory.bus_width x memory.data_rate / 8 = 1,024 GB/s; got 1,000 GB/s"),
    ("bandwidth: 1 TB/s", "bandwidth: 2000 TB/s",
     ("memory.bandwidth: must be at most 13,744 GB/s, 200 reads of its 64 GiB per second for HBM3; "
      "got 2,000,000 GB/s")),
    ("type: HBM3\n  capacity: 64 GiB\n  usable: 63 GiB\n  bandwidth: 1 TB/s", "capacity: 64 GiB\n  bandwidth: 20 TB/s",
     ("memory.bandwidth: must be at most 13,744 GB/s, 200 reads of its 64 GiB per second for memory without "
      "memory.type (SRAM would have no limit); got 20,000 GB/s")),
    ("type: HBM3\n  capacity: 64 GiB\n  usable: 63 GiB", "type: LPDDR5X-8533 on a board\n  capacity: 16 GiB",
     ("memory.bandwidth: must be at most 687 GB/s, 40 reads of its 16 GiB per second for LPDDR5X-8533 on a board; "
      "got 1,000 GB/s")),
    ("data_rate: 8 Gbit/s", "data_rate: 80 Gbit/s",
     "memory.data_rate: must be at most 13.8 Gbit/s a pin, of HBM3; got 80 Gbit/s"),
    ("bus_width: 1000\n  data_rate: 8 Gbit/s", "bus_width: 100",
     "memory.bandwidth: must be at most 13.8 Gbit/s a pin, of HBM3; got 80 Gbit/s"),
    ("fp8: 300 TOP/s", "fp8: 1500000 TOP/s",
     "matrix.fp8: must be at most 8,388,608 OPs per core and clock of kind accelerator; got 10,000,000"),
    ("PCIe 5.0 x16", "PCIe 4.0 x16", "host.bandwidth: must be 31.51 GB/s, that of PCIe 4.0 x16 one way"),
    ("PCIe 5.0 x16", "PCIe 6.0 x16", "host.bandwidth: must be 121 GB/s, that of PCIe 6.0 x16 one way"),
    ("type: links, bandwidth: 100 GB/s", "type: NVLink 4, bandwidth: 900 GB/s",
     "scale_up.bandwidth: must be at most 450 GB/s, that of NVLink 4 one way; got 900 GB/s"),
    ("kind: accelerator", "kind: gpu", "registers.capacity: must be whole KiB of each of 100 cores; got 102.4 KiB"),
    ("usable: 63 GiB", "usable: 31 GiB", "memory.usable: must be between half of memory.capacity and memory.capacity"),
    ("capacity: 20 MiB", "capacity: 70 GiB", "l2.capacity: must be below memory.capacity"),
    ("bandwidth: 10 TB/s", "bandwidth: 200 TB/s",
     "l2.bandwidth: must not be above registers.bandwidth, which is nearer to the units"),
    ("bandwidth: 100 GB/s", "bandwidth: 100 TB/s", "scale_up.bandwidth: must not be above memory.bandwidth"),
    ("devices: 8", "devices: 2", "scale_up.topology: two devices are a pair, more are not; got torus2d of 2"),
    ("devices: 8", "devices: 1", "scale_up.devices: must be at least 2"),
    ("idle: 70 W", "idle: 700 W", "power.idle: must not be above power.tdp"),
    (", date: 2024-06", "", "price.date: must be the day or the month of the price, such as 2024-06; it is missing"),
    ("date: 2024-06", "date: June",
     "price.date: must be the day or the month of the price, such as 2024-06; got 'June'"),
    ("year: 2024, url", "year: 20244, url", "sources.paper.year: must be a year; got 20244"),
    ("url: https://", "url: ftp://", "sources.paper.url: must begin with https://; got 'ftp://example.org/paper'"),
    ("clock:", "  other: {title: Unread, year: 2024}\nclock:", "sources.other: no number cites it"),
    ("released: 2024", "released: 24", "released: must be a year; got 24"),
]  # fmt: skip


def test_a_file_that_is_right_passes_every_check(chip):
    assert violations(load_hardware(chip())) == ()


@pytest.mark.parametrize(("old", "new", "line"), WRONG)
def test_every_check_can_fail(chip, old, new, line):
    assert line in violations(load_hardware(chip(old, new)))


@pytest.mark.parametrize(
    ("memory", "bandwidth"), [("SRAM", "2000 TB/s"), ("of a kind to come", "2000 TB/s"), ("HBM", "12 TB/s")]
)
def test_bandwidth_check_skips_memories_of_unknown_pin_rate(chip, memory, bandwidth):
    known = CHIP[CHIP.index("type: HBM3") : CHIP.index("\nregisters")]
    other = f"type: {memory}\n  capacity: 64 GiB\n  bandwidth: {bandwidth}\n  bus_width: 1000"
    assert not [
        line for line in violations(load_hardware(chip(known, other))) if "memory.bandwidth: must be at" in line
    ]


def test_a_note_explains_a_sparse_rate_that_is_not_twice_the_dense_one(chip):
    noted = 'sparse: {source: paper, fp16: {value: 200 TOP/s, note: "a third more"}}'
    assert violations(load_hardware(chip("sparse: {source: paper, fp16: 300 TOP/s}", noted))) == ()


def test_a_name_of_another_device_is_a_clash(chip):
    device = load_hardware(chip("[chippy]", "[T4]"))
    assert name_clashes(device, hardware_aliases()) == ("aliases: T4 is a name of t4 too",)
    assert name_clashes(load_hardware("t4"), hardware_aliases()) == ()


def test_check_reports_the_checks_it_ran(capsys, chip):
    code, out, _ = run(capsys, "hardware", chip(), "--check")
    assert code == 0
    assert out.startswith("chip: ok: ")
    assert max(map(len, out.splitlines())) <= 80
    for check in CHECKS:
        assert check in " ".join(out.split())


def test_check_prints_a_line_for_each_violation_and_ends_with_2(capsys, chip):
    path = chip("idle: 70 W", "idle: 700 W")
    code, out, err = run(capsys, "hardware", path, "--check")
    assert code == 2
    assert out == "chip: power.idle: must not be above power.tdp\n"
    assert err == "llmviewer: --check: 1 violation\n"


def test_check_without_a_name_checks_all(capsys):
    code, out, _ = run(capsys, "hardware", "--check")
    assert code == 0
    devices, checked = out.split("Checked: ")
    assert [line.split(":")[0] for line in devices.splitlines()] == list(hardware_names())
    assert checked.count(";") == len(CHECKS)


def test_a_folder_of_the_user_adds_devices_and_their_aliases(folder):
    assert {"chip", "t4"} <= set(hardware_names())
    assert load_hardware("chippy") == load_hardware("CHIP") == load_hardware(str(folder / "chip.yaml"))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("RTX 4090", "rtx-4090"), ("rtx4090", "rtx-4090"), ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"), ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("nvidia_h200", "h200-sxm"),
        ("NVIDIA GH200 480GB", "gh200"), ("AMD Instinct MI300X", "mi300x"), ("Apple M3 Max", "m3-max"),
        ("Intel(R) Arc(TM) B580", "arc-b580"), ("Google TPU v5e", "tpu-v5e"),
    ],
)  # fmt: skip
def test_device_names_accept_driver_and_common_spellings(written, name):
    assert load_hardware(written).name == name


@pytest.mark.parametrize("written", ["A100", "NVIDIA A100", "V100", "AMD T4", "NVIDIA", "RTX 3080 Laptop GPU"])
def test_ambiguous_device_names_are_refused(written):
    with pytest.raises(InputError, match="no hardware"):
        load_hardware(written)


def test_no_alias_is_redundant_after_normalization():
    for name, called in hardware_aliases().items():
        ways = [normalized(each).removeprefix(load_hardware(name).vendor) for each in called]
        assert len({*ways}) == len(ways), called


def test_a_folder_of_the_user_overrides_names_and_aliases(folder, chip):
    chip(name="t4")
    chip("[chippy]", "[h100]", name="other")
    assert load_hardware("t4").title == "A chip"
    assert load_hardware("tesla-t4").architecture == "turing"  # an alias of the file that ships
    assert load_hardware("h100").name == "other"
    assert hardware_names().count("t4") == 1
    (folder / "t4.yaml").unlink()
    assert load_hardware("t4").architecture == "turing"


def test_the_nearest_names_are_of_both_folders(folder):
    with pytest.raises(InputError, match=r"no hardware 'chipp': did you mean chippy\?"):
        load_hardware("chipp")
    assert folder.is_dir()


def test_option_acts_like_the_environment_variable(capsys, chip, monkeypatch):
    monkeypatch.delenv("LLMVIEWER_HARDWARE_PATH", raising=False)
    own = ("--hardware-path", str(Path(chip()).parent))
    assert run(capsys, "hardware", *own)[1].count("\nchip ") == 1
    assert run(capsys, "analyze", "gpt2", "chippy", *own)[0] == 0
    assert run(capsys, "sweep", "gpt2", "chip", "--over", "batch=1,2", *own)[0] == 0
    assert "LLMVIEWER_HARDWARE_PATH" not in os.environ
    assert run(capsys, "analyze", "gpt2", "chippy")[0] == 2


def test_option_overrides_the_environment_variable(capsys, folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    code, _, err = run(capsys, "hardware", "chippy", "--hardware-path", str(other))
    assert code == 2
    assert "no hardware 'chippy'" in err
    assert os.environ["LLMVIEWER_HARDWARE_PATH"] == str(folder)


def test_a_path_that_is_no_folder(capsys, tmp_path):
    missing = tmp_path / "missing"
    code, _, err = run(capsys, "hardware", "--hardware-path", str(missing))
    assert code == 2
    assert err == (
        "llmviewer: LLMVIEWER_HARDWARE_PATH (--hardware-path): must be a folder of hardware YAML files; "
        f"got {str(missing)!r}\n"
    )


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A root with /proc and /sys of a CPU with AMX: two sockets of two cores, two threads each."""
    root = tmp_path / "root"
    blocks = [
        f"processor\t: {i}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel name\t: Xeon(R) 8480C\n"
        f"cpu MHz\t\t: 800.0\nphysical id\t: {i // 4}\ncore id\t\t: {i // 2 % 2}\n"
        "flags\t\t: sse2 avx fma avx512f avx512_vnni avx512_fp16 amx_bf16 amx_int8"
        for i in range(8)
    ]
    files = {
        "proc/cpuinfo": "\n\n".join(blocks) + "\n\n",
        "proc/meminfo": "MemTotal:       65536000 kB\nMemFree: 1 kB\n",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3800000\n",
    }
    for i in range(8):
        for index, level, shared, size in ((0, 1, i // 2, "48K"), (2, 2, i // 2, "2048K"), (3, 3, i // 4, "105M")):
            cache = f"sys/devices/system/cpu/cpu{i}/cache/index{index}"
            files |= {f"{cache}/level": f"{level}\n", f"{cache}/shared_cpu_list": f"{shared}\n", f"{cache}/size": size}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return root


def smi(tmp_path, *rows):
    script = tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir(exist_ok=True)
    script.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    script.chmod(0o755)


def saved(tmp_path, text):
    path = tmp_path / f"{re.search(r'^name: (.*)$', text, re.MULTILINE)[1]}.yaml"
    path.write_text(text)
    return str(path)


def test_the_cpu_of_this_machine_is_drafted(machine, tmp_path):
    text = draft(machine)
    assert "\n---\n" not in text
    path = saved(tmp_path, text)
    with pytest.raises(InputError, match=r"memory\.bandwidth: is missing$"):
        load_hardware(path)
    device = load_hardware(path, ["memory.bandwidth=300 GB/s"])
    assert (device.title, device.kind) == ("Xeon(R) 8480C", "cpu")
    assert device.fact("cores.count") == 4
    assert device.fact("clock.boost") == 3.8e9
    assert device.fact("memory.capacity") == 65536000 * 1024
    assert device.fact("l2.capacity") == 4 * 2**21
    assert device.fact("l3.capacity") == 2 * 105 * 2**20
    assert device.fact("vector.fp32") == pytest.approx(4 * 64 * 3.8e9, rel=1e-3)
    assert device.fact("vector.int8") == pytest.approx(4 * 256 * 3.8e9, rel=1e-3)
    assert device.fact("matrix.bf16") == pytest.approx(4 * 1024 * 3.8e9, rel=1e-3)
    assert device.fact("matrix.int8") == pytest.approx(4 * 2048 * 3.8e9, rel=1e-3)
    assert violations(device) == ()
    assert "4 cores x 64 OPs x clock (avx512f:" in text


def test_the_units_of_a_cpu_are_those_of_its_flags(machine, tmp_path):
    cpuinfo = machine / "proc" / "cpuinfo"
    plain = cpuinfo.read_text().replace("avx512f avx512_vnni avx512_fp16 amx_bf16 amx_int8", "")
    cpuinfo.write_text(plain)
    device = load_hardware(saved(tmp_path, draft(machine)), ["memory.bandwidth=300 GB/s"])
    assert device.fact("vector.fp32") == pytest.approx(4 * 32 * 3.8e9, rel=1e-3)
    assert {str(resource) for resource in device.rates} == {"vector fp32", "memory"}


def test_a_zen_4_core_has_half_the_lanes(machine, tmp_path):
    cpuinfo = machine / "proc" / "cpuinfo"
    amd = cpuinfo.read_text().replace("GenuineIntel", "AuthenticAMD").replace("cpu family\t: 6", "cpu family\t: 25")
    cpuinfo.write_text(amd)
    device = load_hardware(saved(tmp_path, draft(machine)), ["memory.bandwidth=300 GB/s"])
    assert device.fact("vector.fp32") == pytest.approx(4 * 32 * 3.8e9, rel=1e-3)


def test_a_known_gpu_is_the_file_that_ships_and_an_unknown_one_is_drafted(machine, tmp_path):
    known = "NVIDIA H100 80GB HBM3, 81559, 1980, 2619, 700.00, 9.0, 5, 16, 550.54"
    smi(tmp_path, known, known, "NVIDIA Chip 9, 24564, 2520, 10501, 450.00, 8.9, 4, 16, 550.54")
    _, shipped, drafted = draft(machine).split("---\n")
    assert shipped.startswith("# 2 x NVIDIA H100 80GB HBM3: nvidia-smi says memory.total 81559, clocks.max.sm 1980,")
    assert load_hardware(saved(tmp_path, shipped)) == load_hardware("h100-sxm")
    rated = drafted.replace("# boost: 2520 MHz", "boost: 2400 MHz")
    device = load_hardware(saved(tmp_path, rated), ["memory.bandwidth=1 TB/s", "vector.fp32=80 TOP/s"])
    assert device.name == "nvidia-chip-9"
    assert device.fact("memory.capacity") == 24564 * 2**20
    assert device.fact("clock.max") == 2.52e9
    assert device.fact("power.tdp") == 450
    assert violations(device) == ()
    for unknown in ("  # fp32: ", "  # bandwidth: ", "# matrix: "):
        assert unknown in drafted


def test_drafted_gpu_file_omits_values_the_driver_does_not_report(machine, tmp_path):
    smi(tmp_path, "Odd, [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A]")
    drafted = draft(machine).split("---\n")[1]
    assert "  # capacity: " in drafted
    for absent in ("clock:", "power:", "host:", "compute_capability:"):
        assert f"\n{absent}" not in drafted


def test_local_needs_proc(tmp_path):
    with pytest.raises(InputError) as error:
        draft(tmp_path)
    assert str(error.value) == f"{tmp_path / 'proc/cpuinfo'}: cannot be read; --local needs Linux"


def test_the_command_drafts_this_machine(capsys):
    code, out, _ = run(capsys, "hardware", "--local")
    assert code == 0
    assert out.startswith("# Drafted from this machine.")


def test_usable_memory_of_macs_is_limited_by_macos():
    macs = {name: load_hardware(name) for name in hardware_names() if re.match(r"m[1-4](-|$)", name)}
    known = {name for name, mac in macs.items() if "memory.usable" in mac.numbers}
    assert macs.keys() - known == {"m3-ultra"}  # of 512 GB nobody says it
    for name in known:
        assert 0.66 < macs[name].capacity / macs[name].fact("memory.capacity") < 0.85
    assert not analyze("llama-3.1-8b", "m1").memory.fits  # 16.3 GB in a machine of 16 GiB


def test_memory_that_is_usable_is_kept_beside_another_capacity(chip):
    changes = ["memory.usable=20 GiB", "memory.capacity=24 GiB"]
    assert load_hardware(chip(), changes).capacity == 20 * 2**30
    assert load_hardware(chip(), changes[1:]).capacity == 24 * 2**30


def test_memory_that_is_usable_grows_with_the_capacity(chip):
    assert load_hardware(chip(), ["memory.capacity=1x"]).capacity == 63 * 2**30
    assert load_hardware(chip(), ["memory.capacity=2x"]).capacity == 126 * 2**30
    full = chip("usable: 63 GiB", "usable: 64 GiB")
    assert load_hardware(full, ["memory.capacity=0.3x"]).capacity == pytest.approx(0.3 * 64 * 2**30)


def test_no_more_memory_is_usable_than_there_is(chip):
    with pytest.raises(InputError) as error:
        load_hardware(chip(), ["memory.usable=2x"])
    assert str(error.value) == "memory.usable=2x: must be at most memory.capacity, 68.7 GB; got 135 GB"
    path = chip("usable: 63 GiB", "usable: 65 GiB")
    with pytest.raises(InputError) as error:
        load_hardware(path)
    assert str(error.value) == f"{path}: memory.usable: must be at most memory.capacity, 68.7 GB; got 69.8 GB"


def test_a_what_if_is_given_once(chip):
    with pytest.raises(InputError, match=r"^memory\.bandwidth=3x: memory\.bandwidth is given twice; give each once$"):
        load_hardware(chip(), ["memory.bandwidth=2x", "memory.bandwidth=3x"])


def test_the_documentation_has_every_key_and_word():
    text = (Path(__file__).parent.parent / "docs" / "hardware.md").read_text()
    lines = [line.split(" | ", 1) for line in text.splitlines() if line.startswith("| `")]
    told = {name: set(re.findall(r"`(\w+)`", said)) for names, said in lines for name in re.findall(r"`(\w+)`", names)}
    units = {name: said for names, said in lines for name in re.findall(r"`(\w+)`", names)}
    for block, keys in SECTIONS.items():
        assert keys.keys() <= told[block], block
        for unit in set(keys.values()):
            assert {"count": "whole number", "topology": "`topology`"}.get(unit, unit) in units[block], (block, unit)
    assert set(TOPOLOGIES) <= told["scale_up"]
    assert set(KINDS) == told["kind"]
    assert set(STATUSES) == told["status"]
    assert set(PLAIN) <= told.keys()


def test_the_file_in_the_documentation_can_be_used(tmp_path):
    text = (Path(__file__).parent.parent / "docs" / "hardware.md").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text.partition("```yaml\n")[2].partition("```")[0])
    assert violations(load_hardware(str(path))) == ()
    assert analyze("llama-3.1-8b", str(path)).memory.fits


def test_shipped_hardware_file_is_exported_as_a_template(capsys, tmp_path):
    path = tmp_path / "mine.yaml"
    assert run(capsys, "hardware", "h100", "--format", "yaml", "-o", str(path))[0] == 0
    mine, own = load_hardware(str(path)), load_hardware("h100-sxm")
    assert (mine.name, mine.aliases) == ("mine", ())
    assert (mine.rates, mine.facts, mine.sources) == (own.rates, own.facts, own.sources)
    assert not name_clashes(mine, hardware_aliases())
    _, out, _ = run(capsys, "hardware", "h100", "--format", "yaml")
    assert out == hardware_file("h100-sxm").read_text()


def test_the_format_of_a_device_follows_the_name_of_the_file(capsys, tmp_path):
    path = tmp_path / "mine.yaml"
    assert run(capsys, "hardware", "h100", "-o", str(path))[0] == 0
    assert load_hardware(str(path)).rates == load_hardware("h100").rates
    assert run(capsys, "hardware", "h100", "-o", str(tmp_path / "x.json"))[0] == 0
    assert json.loads((tmp_path / "x.json").read_text())["name"] == "h100-sxm"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("h100 -o x.csv", "x.csv: must end in one of .txt, .json, .yaml, .yml; or give --format"),
        ("--check -o f.txt", "--check is for the screen; leave out --local, --format and -o"),
        ("--check --format json", "--check is for the screen; leave out --local, --format and -o"),
        ("--check --local", "--check is for the screen; leave out --local, --format and -o"),
        ("t4 --local", "--local drafts a YAML file of this machine; leave out t4"),
        ("--local --format json", "--local drafts a YAML file of this machine; leave out --format json"),
    ],
)
def test_no_option_of_hardware_is_dropped(capsys, tmp_path, monkeypatch, given, error):
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "hardware", *given.split()) == (2, "", f"llmviewer: {error}\n")
    assert list(tmp_path.iterdir()) == []


def test_every_shipped_hardware_file_works_as_a_template(tmp_path):
    for name in hardware_names():
        path = tmp_path / "mine.yaml"
        path.write_text(hardware_yaml(name, "mine"))
        mine = load_hardware(str(path))
        assert (mine.rates, mine.aliases) == (load_hardware(name).rates, ())


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([], "--format yaml needs one device; give its NAME"),
        (["nosuch"], "no hardware 'nosuch'"),
    ],
)
def test_yaml_of_no_device(capsys, tmp_path, given, error):
    path = tmp_path / "mine.yaml"
    code, out, err = run(capsys, "hardware", *given, "--format", "yaml", "-o", str(path))
    assert (code, out, path.exists()) == (2, "", False)
    assert error in err
    assert err.count("\n") == 1


def test_a_unit_may_follow_its_number_at_once():
    spaced = ("3 TB/s", "B/s"), ("80 GiB", "B"), ("1e3 us", "s"), ("155 TOP/s", "OP/s"), ("1 EB/s", "B/s")
    for text, unit in spaced:
        assert parse(text.replace(" ", ""), unit) == parse(text, unit)


@pytest.mark.parametrize("unit", ["TFLOP/s", "TFLOPS", "TFLOPs", "TOPS"])
def test_rates_may_be_written_as_datasheets_do(unit):
    assert parse(f"400 {unit}", "OP/s") == parse(f"400{unit}", "OP/s") == parse("400 TOP/s", "OP/s")
    changed = load_hardware("h100-sxm", [f"matrix.bf16=400 {unit}"])
    assert changed.rates == load_hardware("h100-sxm", ["matrix.bf16=400 TOP/s"]).rates


@pytest.mark.parametrize("text", ["400 TFLOP", "400 FLOP/S", "400 tflops", "400 TMAC/s", "400 TB/s"])
def test_a_rate_of_operations_has_its_unit(text):
    with pytest.raises(ValueError, match=rf"and a unit in OP/s, such as '155 TOP/s'; got '{text}'$"):
        parse(text, "OP/s")
    with pytest.raises(ValueError, match=r"and a unit in B/s, such as '1.5 TB/s'; got '4 TFLOPS'$"):
        parse("4 TFLOPS", "B/s")
