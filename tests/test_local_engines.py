"""llama.cpp and MLX as their users measured them: local_engines.csv, to which profiles/engines/*.yaml were fitted.

Tables of discussions 4167 (Apple), 10879 (Vulkan), 15013 (CUDA) and 15021 (ROCm) of ggml-org/llama.cpp were read where
others quote them. `past` is the mean number of tokens before those of a pass.
"""

import csv

import numpy as np
import pytest
import yaml

from llmviewer import analyze, choose, compare
from llmviewer.devices.files import load_hardware
from llmviewer.errors import InputError
from llmviewer.expectation.device import find_device
from llmviewer.expectation.engines import find_engine
from llmviewer.expectation.profile import FOLDER
from llmviewer.expectation.whole_passes import LEVELS, PHASES, backend_of
from llmviewer.reports.phrases import headline
from llmviewer.resource import matrix
from llmviewer.serving.planning import plan
from llmviewer.serving.steps import Steps
from llmviewer.setting import Setting
from llmviewer.workload import Workload

from .cases import first_fast
from .documented import rows, text
from .oracle import make_engines

ENGINES = list(make_engines.BACKENDS)
BACKENDS = [(engine, place) for engine in ENGINES for place in range(len(make_engines.BACKENDS[engine]))]


def documents(engine):
    return yaml.safe_load((FOLDER / "engines" / f"{engine}.yaml").read_text())["backends"]


def passes_of(engine, place):
    head, names = make_engines.BACKENDS[engine][place]
    return [one for one in make_engines.measured() if one.engine in names and one.fits(head)]


@pytest.mark.slow("every row of the measurements")
def test_nothing_was_measured_faster_than_the_bound():
    """F16 prompts on GeForce cards are summed in fp16, at twice the rate that their files have."""
    every = make_engines.measured()
    assert len(every) > 350
    halves = [one for one in every if one.quant == "F16" and "CUDA" in one.engine]
    assert [one for one in every if one.time_s < one.bound_s and one not in halves] == []
    assert [one for one in halves if one.time_s < one.bound_s / 2] == []


def test_engines_without_factors_are_no_faster_than_the_bound():
    """MLC-LLM and ExLlama, of which a few tokens per second are known."""
    with make_engines.ROWS.open() as file:
        others = [row for row in csv.DictReader(file) if row["engine"] in ("MLC-LLM", "ExLlama")]
    assert len(others) == 8
    for row in others:
        workload = Workload.chunk(batch=1, chunk=int(row["tokens"]), past=int(row["past"]))
        bound_s = Setting.of(row["model"], row["device"], quant=row["quant"]).plan.time_s(workload)
        assert bound_s < 1 / float(row["tokens_per_s"])


@pytest.mark.parametrize(("engine", "place"), BACKENDS)
def test_profiles_have_the_factors_that_fit_the_passes(engine, place):
    passes, told = passes_of(engine, place), documents(engine)[place]
    assert told["passes"] == len(passes)
    for (name, key), value in make_engines.fit(passes).items():
        known = told[name][key] if name in make_engines.VARYING else told[name]
        assert known == pytest.approx(value, rel=0.02, abs=0.02), (name, key)


def test_errors_are_of_passes_that_were_held_out():
    (place,) = (i for i, (head, _) in enumerate(make_engines.BACKENDS["llama.cpp"]) if head.get("hbm") is False)
    found = make_engines.errors(passes_of("llama.cpp", place))
    for level in LEVELS:
        for phase in PHASES:
            known = documents("llama.cpp")[place]["errors"][level][phase]
            assert known == pytest.approx(found[level][phase], rel=0.02), (level, phase)


@pytest.mark.parametrize("engine", first_fast(ENGINES, "every row of the measurements"))
def test_expected_time_with_an_engine_applies_its_fitted_factors(engine):
    """The same time as the sum over amounts, and four in five of the measured times within the brackets."""
    inside = []
    for place in range(len(make_engines.BACKENDS[engine])):
        passes = passes_of(engine, place)
        factors = make_engines.fit(passes)
        for one in passes:
            quant = "fp16" if one.quant == "F16" else one.quant or None
            setting = Setting.of(one.model, one.device, quant=quant, engine=engine)
            found = setting.expected_time(
                "prefill", Workload.chunk(batch=one.batch, chunk=one.tokens, past=one.past), one.batch
            )
            expected, low, high = found.numbers()
            assert low < expected < high
            assert expected >= one.bound_s * (1 - 1e-9)
            assert expected == pytest.approx(make_engines.expected_s(one, factors), rel=0.03)
            inside.append(low <= one.time_s <= high)
    assert np.mean(inside) > 0.75


def test_vectorized_workloads_equal_each_alone():
    setting = Setting.of("llama-3-8b", "rtx-4090", quant="Q4_K_M", engine="llama.cpp")
    batch = np.array([1, 4, 8, 9, 64])
    together = setting.expected_time("decode", Workload.decode(batch=batch, kv_len=1000), batch)
    for place, number in enumerate(batch.tolist()):
        alone = setting.expected_time("decode", Workload.decode(batch=number, kv_len=1000), number)
        for side in ("expected", "low", "high"):
            assert getattr(alone, side).item() == pytest.approx(getattr(together, side)[place])


@pytest.mark.parametrize(
    ("engine", "device", "quant"), [("llama.cpp", "rtx-4090", "Q4_0"), ("mlx", "m4-max", "W4A16g64")]
)
def test_simulated_steps_are_those_of_the_engine(engine, device, quant):
    setting = Setting.of("llama-3-8b", device, quant=quant, engine=engine)
    steps, bound = Steps(setting, expected=True), Steps(setting, expected=False)
    for batch, kv_len in ((1.0, 1088.0), (4.0, 300.0), (40.0, 700.0)):
        found = steps.decode_s(batch=batch, kv_len=kv_len)
        own = setting.expected_time("decode", Workload.decode(batch=batch, kv_len=kv_len), batch)
        assert found == pytest.approx(own.expected.item(), rel=0.06)
        assert found >= bound.decode_s(batch=batch, kv_len=kv_len)


@pytest.mark.parametrize(
    ("engine", "device", "quant"), [("llama.cpp", "rtx-4090", "Q8_0"), ("mlx", "m4-max", "W4A16g64")]
)
def test_plans_of_rare_requests_are_those_of_an_analysis(engine, device, quant):
    """Operators of equal traffic in all differ in how much of it is cache."""
    asked = {"prompt": 1000, "gen": 50, "engine": engine}
    found = plan("llama-3.1-8b", rate=1e-6, hardware=[device], quants=[quant], layouts=[""], confirm=False, **asked)
    (one,) = (*found.within_targets, *found.unmeasured)
    alone = analyze("llama-3.1-8b", device, quant=quant, **asked).evaluation.expected
    assert (one.ttft_s, one.tpot_s) == pytest.approx((alone.ttft_s, alone.tpot_s), rel=1e-5)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"quant": "Q4_K_M"}, True),
        ({"quant": "Q4_K_M", "engine": "llama.cpp"}, False),
        ({"quant": "Q4_K_M", "library": "vllm"}, False),
        ({"quant": "Q4_K_M", "bound": True}, False),
        ({"quant": "W4A16g128"}, False),
        ({}, False),
    ],
)
def test_note_suggests_the_engine_for_gguf_types(asked, told):
    found = analyze("llama-3-8b", "rtx-4090", **asked).notes
    assert any("--engine llama.cpp uses those of llama.cpp" in note for note in found) is told


def test_engine_description_states_the_source_of_its_factors():
    for name in ENGINES:
        assert "factors fitted to passes measured by its users" in find_engine(name).description
    found = headline(analyze("llama-3-8b", "m4-max", engine="mlx"))
    assert found.endswith(", engine mlx")


@pytest.mark.parametrize(
    ("device", "quant", "text"),
    [
        ("rtx-4090", "Q4_K_M", "Q4_K_M,A8g32"),
        ("m2-max", "Q4_K_M", "Q4_K_M"),
        ("rtx-4090", "Q4_K_M,A16", "Q4_K_M,A16"),
        ("rtx-4090", "W8A16", "W8A16"),
        ("rtx-4090", "W8", "W8, *=A8g32"),
        ("rtx-4090", None, "published"),
    ],
)
def test_activations_are_those_of_the_backend(device, quant, text):
    setting = Setting.of("llama-3-8b", device, quant=quant, engine="llama.cpp")
    assert str(setting.quantization) == (text if quant else str(Setting.of("llama-3-8b", device).quantization))
    assert setting.graph.parameters == Setting.of("llama-3-8b", device, quant=quant).graph.parameters


def test_weights_are_those_of_the_file():
    """Adding activations leaves each tensor the format of its file type. Embeddings stay in host memory."""
    with_engine, without = (
        analyze("llama-3-8b", "rtx-4090", quant="Q4_K_M", engine=engine) for engine in ("llama.cpp", "")
    )
    in_host_memory = with_engine.setting.host_embeddings
    assert in_host_memory == 128256 * 4096 * 4.5 / 8
    assert with_engine.memory.weight_bytes + in_host_memory == without.memory.weight_bytes


@pytest.mark.parametrize("device", ["tpu-v5e", "gaudi-3", "grace"])
def test_devices_without_a_backend_are_refused(device):
    with pytest.raises(InputError, match=r"llama\.cpp was measured on devices of nvidia, apple, amd, intel"):
        Setting.of("llama-3-8b", device, engine="llama.cpp")


def test_a_device_without_passes_has_the_factors_of_its_architecture():
    backend = backend_of("llama.cpp", load_hardware("rtx-4060-ti-16gb"))
    result = analyze("llama-3-8b", "rtx-4060-ti-16gb", quant="Q4_0", engine="llama.cpp", prompt=512)
    sources = {op.expectation_source for op in result.phases.prefill.operators}
    assert sources == {f"transferred from ada devices, llama.cpp {backend.title}, whole passes"}


def test_comparison_on_local_engines_equals_each_device_alone():
    """Whichever comes first: Apple's kernels take as long with activations of 8 bits in the precision."""
    names = ["m4-max", "tpu-v5e", "rtx-4090", "rx-7900-xtx"]
    found = compare("llama-3-8b", names, quants=["Q4_K_M"], engine="llama.cpp", prompt=512)
    assert [cell.refused for cell in found.cells] == ["", "no kernels of llama.cpp are known on it", "", ""]
    for cell in found.runnable:
        alone = analyze("llama-3-8b", cell.hardware.name, quant="Q4_K_M", engine="llama.cpp", prompt=512)
        times = found.expected(cell)
        assert times.ttft.expected[0] == pytest.approx(alone.generation.expected_ttft_s, rel=0.005)
        assert times.tpot.expected[0] == pytest.approx(alone.generation.expected_tpot_s, rel=0.005)
    assert found.to_dict()["inputs"]["engine"] == "llama.cpp"
    with pytest.raises(InputError, match="was measured on devices"):
        compare("llama-3-8b", ["tpu-v5e"], engine="llama.cpp")


def test_devices_are_chosen_and_planned_with_the_engine():
    names = ["rtx-4090", "m4-max", "tpu-v5e"]
    chosen = choose("llama-3-8b", quants=["Q4_K_M"], hardware=names, engine="llama.cpp")
    assert [one.cell.hardware.name for one in chosen.ranked] == ["rtx-4090", "m4-max"]
    assert [one.factor for one in chosen.rejected] == ["engine"]
    plans = [
        plan("llama-3-8b", rate=0.1, hardware=order, quants=["Q4_K_M"], engine="llama.cpp", max_devices=1, by="devices")
        for order in (names, names[::-1])
    ]
    found = [{one.hardware.name: one.tpot_s for one in each.best_by_device} for each in plans]
    assert set(found[0]) == {"rtx-4090", "m4-max"}
    assert found[0] == pytest.approx(found[1])


def test_page_states_the_error_of_each_engine():
    told = {cells[0]: cells[1:] for cells in rows("serving.md", "| engine | of the device |")}
    found = {}
    for engine in ENGINES:
        for backend in documents(engine):
            name = "MLX" if engine == "mlx" else f"{engine}, {backend['title']}"
            for phase in PHASES:
                errors = (backend["errors"][level][phase] for level in LEVELS)
                found[f"{name}: {phase}"] = [
                    f"{100 * e['median']:.0f} % of {e['passes']}" if e["passes"] else "" for e in errors
                ]
    assert told == found
    with make_engines.ROWS.open() as file:
        every = [row for row in csv.DictReader(file) if row["engine"].startswith(("llama.cpp", "MLX"))]
    devices = len({row["device"] for row in every})
    assert f"{len(every)} speeds of {devices} GPUs from public tables" in text("serving.md")


@pytest.mark.parametrize("name", ["m3", "m3-pro", "m3-ultra", "m4", "m4-pro", "m4-max", "m5-max"])
def test_macs_without_a_published_cache_use_a_similar_chip(name):
    device = find_device(name)
    assert device.assumed == ("l3.capacity of m3-max",)
    assert device.l2 == find_device("m3-max").l2
    sources = [op.expectation_source for op in analyze("llama-2-7b", name).phases.decode.operators]
    assert any(f"assumed {device.assumed[0]}" in source for source in sources)


def test_the_assumed_cache_makes_no_difference_to_tokens():
    """Weights stream past it: with the 8 MiB that M1 and M2 have, a token takes as long to 1 %."""
    usual, small = (
        analyze("llama-2-7b", "m2", quant="W4A16g32", hardware_set=changes).phases.decode.total.expected_time_s
        for changes in (("l3.capacity=48 MiB",), ("l3.capacity=8 MiB",))
    )
    assert usual == pytest.approx(small, rel=0.01)


def test_without_matrix_units_one_row_is_no_tile():
    """fp16 weights of a 7B model read at four fifths of the bandwidth, not multiplied with 64 rows of zeros."""
    assert matrix("fp16") not in load_hardware("m2-max").rates
    total = analyze("llama-2-7b", "m2-max", prompt=8, gen=2, kv_len=64).phases.decode.total
    assert 1.15 < total.expected_time_s / total.bound_time_s < 1.4
