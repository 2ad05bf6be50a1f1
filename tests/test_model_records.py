"""`llmviewer models --add`: what it refuses. docs/extending.md has what it writes, and test_extending.py runs that."""

import json

import pytest

from llmviewer.cli import main

CONFIG = {
    "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mini", [], ("--add needs a config.json or org/name, and the published number of --parameters; such as "
                     "`llmviewer models config.json --add mini --parameters 8030261248`")),
        ("Mini", ["--parameters", "1"], "a model's name must be small letters, digits, dots and hyphens; got 'Mini'"),
        ("gpt2", ["--parameters", "1"], "gpt2 is a model that ships; give another name"),
        ("mini", ["--parameters", "1"],
         "config.json: a record names where its config is published; give --repository org/name"),
        ("mini", ["--parameters", "1", "--repository", "org/mini"],
         "config.json: has 9,941,504 parameters by its graph; --parameters must be the same; got 1"),
    ],
)  # fmt: skip
def test_a_record_that_is_not_whole_is_refused(name, options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert main(["models", "config.json", "--add", name, *options]) == 2
    assert capsys.readouterr().err == f"llmviewer: {message}\n"
