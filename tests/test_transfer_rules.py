"""Measured kernels that stand in for one that was not measured: rules that left-out rows confirm."""

import re
from dataclasses import replace

import numpy as np
import pytest

from llmviewer.devices.files import hardware_names, load_hardware
from llmviewer.errors import InputError
from llmviewer.expectation import transfer
from llmviewer.expectation.device import device_of, find_device
from llmviewer.expectation.device_similarity import generation
from llmviewer.expectation.families import FAMILIES, Implementation
from llmviewer.expectation.index import index
from llmviewer.expectation.profile import shipped
from llmviewer.expectation.scaling import scaled_parameters
from llmviewer.expectation.transfer import select_fits, similarity_class

H100 = find_device("h100-sxm")


def fit_of(family, device, library, kernel, dtype="bf16", kv_dtype=""):
    like = next(
        fit
        for fit in shipped()
        if fit.family == family and fit.rows > 400 and not fit.implementation.kernel.endswith("encoder_noncausal")
    )
    implementation = Implementation(library=library, dtype=dtype, kv_dtype=kv_dtype, kernel=kernel)
    return replace(like, device=device, implementation=implementation, variant=like.variant, shape_families=0)


def chosen(asked, *fits):
    """Device, library and kernel of the fits selected for `asked` on an H100."""
    selection = select_fits(fits[0].family, H100, asked, fits)
    return [(fit.device, fit.implementation.library, fit.implementation.kernel) for fit in selection.fits]


def test_the_same_kernel_on_a_sibling_comes_before_another_library_on_the_device():
    asked = Implementation(library="vllm", dtype="bf16", kernel="fused_moe")
    own = fit_of("moe", "h100-sxm", "trtllm", "moe")
    sibling = fit_of("moe", "h200-sxm", "vllm", "fused_moe")
    assert chosen(asked, own, sibling) == [("h200-sxm", "vllm", "fused_moe")]


def test_another_library_on_the_device_comes_before_the_kernel_on_a_device_that_is_no_sibling():
    asked = Implementation(library="vllm", dtype="bf16", kernel="fused_moe")
    own = fit_of("moe", "h100-sxm", "trtllm", "moe")
    assert chosen(asked, own, fit_of("moe", "b200", "vllm", "fused_moe")) == [("h100-sxm", "trtllm", "moe")]


@pytest.mark.parametrize("names", [("vllm_marlin_int4_moe", "vllm_triton_moe"), ("marlin_b", "cutlass_b")])
def test_a_kernel_of_the_same_algorithm_comes_before_others(names):
    asked = Implementation(library="vllm", dtype="int4_wo", kernel="vllm_marlin_moe")
    fits = [fit_of("moe", "h100-sxm", "vllm", name, "int4_wo") for name in names]
    assert chosen(asked, *fits) == chosen(asked, *reversed(fits)) == [("h100-sxm", "vllm", names[0])]
    of_another = fit_of("moe", "h100-sxm", "sglang", "sglang_marlin_moe", "int4_wo")
    assert chosen(asked, fits[1], of_another) == [("h100-sxm", "sglang", "sglang_marlin_moe")]


def test_the_same_attention_kernel_with_another_cache_comes_before_another_kernel():
    asked = Implementation(library="sglang", dtype="bf16", kv_dtype="fp8", kernel="trtllm_mha")
    same = fit_of("attention_prefill", "h200-sxm", "sglang", "trtllm_mha", kv_dtype="bf16")
    other = fit_of("attention_prefill", "h200-sxm", "sglang", "triton", kv_dtype="fp8")
    assert chosen(asked, same, other) == [("h200-sxm", "sglang", "trtllm_mha")]
    exact = fit_of("attention_prefill", "h200-sxm", "sglang", "trtllm_mha", kv_dtype="fp8")
    assert select_fits("attention_prefill", H100, asked, [same, exact]).fits == (exact,)


def test_other_memory_types_form_a_similarity_class_for_elementwise_kernels():
    names = ("h200-sxm", "b200", "l40s", "mi300x")
    for family, of_l40s in (("elementwise", "other memory"), ("gemm", "same maker")):
        fit = next(fit for fit in shipped() if fit.family == family and fit.device == "h100-sxm")
        near = [similarity_class(fit, find_device(name)) for name in names]
        assert near[1:] == ["same maker", of_l40s, "others"]
        assert near[0] == ("same maker" if family == "elementwise" else "siblings")


def test_elementwise_kernels_keep_the_l2_to_memory_bandwidth_ratio_across_architectures():
    moving = next(fit for fit in shipped() if fit.family == "elementwise" and fit.device == "h200-sxm")
    scaled = scaled_parameters(find_device("rtx-pro-6000"), moving)
    assert scaled["lambda"] == moving.parameters["lambda"]


def test_devices_that_are_alike_in_what_matters_use_the_fits_that_each_would_select_by_itself():
    fits = index().fits
    like = {(fit.family, fit.implementation): fit for fit in fits[::47]}
    shipped_devices = map(load_hardware, hardware_names()[::4])
    devices = [device_of(one) for one in shipped_devices if {"cores.count", "l2.capacity"} <= one.numbers.keys()]
    assert 4 < len({generation(device) for device in devices}) < len(devices) / 2
    for family, implementation in like:
        for device in devices:
            try:
                alone = transfer._selected(family, device, implementation, fits, unknown=False)
            except InputError as error:
                with pytest.raises(InputError, match=re.escape(str(error))):
                    select_fits(family, device, implementation, fits)
            else:
                assert select_fits(family, device, implementation, fits) == alone


def test_kernels_measured_with_one_model_start_on_others_as_those_of_their_algorithm():
    """vLLM's Marlin on H100: for MXFP4 only 896 experts were measured, 16 of a token; for int4 many models."""
    fits = [fit for fit in index().fits if (fit.family, fit.device) == ("moe", "h100-sxm")]
    vllm = [fit for fit in fits if fit.implementation.library == "vllm"]
    own = next(fit for fit in vllm if "marlin" in fit.implementation.kernel and fit.shape_families)
    starts = [fit.parameters["start_us"] for fit in vllm if fit is not own and "marlin" in fit.implementation.kernel]
    selection = select_fits("moe", H100, own.implementation, fits)
    assert selection.like_start_us == (pytest.approx(sum(starts) / 2),)  # the median of two
    estimator = transfer.Estimator(selection=selection, device=H100, implementation=own.implementation)
    alone = replace(estimator, selection=replace(selection, like_start_us=()))
    measured, other = ((3584, 3072, 16, 896), (2880, 2880, 4, 128))
    sizes = dict(zip(("hidden", "inter", "topk", "experts"), np.array([measured, other], dtype=float).T, strict=True))
    optional = {name: np.full(2, value) for name, value in FAMILIES["moe"].optional.items()}
    shapes = {**optional, "tokens": np.ones(2), **sizes}
    with_like, without = (one.expect(shapes).expected for one in (estimator, alone))
    assert with_like[0] == without[0]
    assert 20e-6 < without[1] - with_like[1] < 40e-6
