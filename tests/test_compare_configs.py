"""A few random configs against transformers (oracle/compare_configs.py compares every type); defaults of classes."""

from pathlib import Path

import pytest

ORACLE = Path(__file__).parent / "oracle"
TYPES = ("falcon_h1", "minicpm3", "gemma3_text", "qwen2_moe", "gpt2", "bert")
SEEING = (
    "blip-2", "instructblip", "idefics2", "llama4", "inkling2", "deepseek_vl", "llava", "kosmos-2", "lighton_ocr",
    "step3p7",
)  # fmt: skip
CLASSIFIERS = {
    "t5": "ForTokenClassification", "whisper": "ForAudioClassification", "clip": "ForImageClassification",
    "bart": "ForCausalLM",
}  # fmt: skip
ENDINGS = ("ForCausalLM", "GPT2LMHeadModel", "ForSequenceClassification", "ForMaskedLM")


@pytest.mark.slow("builds random models in transformers")
def test_random_configs_have_as_many_parameters_as_in_transformers(monkeypatch):
    """One of each class; what is refused is not compared. Needs the extra `oracle`."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers").logging.set_verbosity(50)
    monkeypatch.syspath_prepend(ORACLE)
    import compare_configs

    lines = [
        line
        for kind in (*TYPES, *SEEING, *CLASSIFIERS)
        for name in compare_configs.class_names(kind)
        if name.endswith(ENDINGS if kind in TYPES else CLASSIFIERS.get(kind, "ForConditionalGeneration"))
        for line in compare_configs.compare(kind, name, seed=1, draws=1, ops=kind in TYPES)
    ]
    assert [line for line in lines if ": refused: " not in line] == []


@pytest.mark.slow("counts in torch again")
def test_defaults_of_classes_are_those_of_transformers(recounted):
    recounted("make_class_defaults.py")
