"""An operator states its kind and how it is divided among ranks; what it leaves out has a lawful default."""

import json
from dataclasses import dataclass, replace
from importlib import import_module
from pkgutil import iter_modules

import pytest

from llmviewer.analyzing.analysis import analyze
from llmviewer.architectures import _BUILDERS
from llmviewer.architectures.llama import FAMILIES
from llmviewer.cli import main
from llmviewer.operators.base import Operator, Sharding
from llmviewer.operators.images import BatchedProduct
from llmviewer.operators.kinds import OperatorGroup, declare, kind_of, traced_kinds
from llmviewer.operators.linear import Linear
from llmviewer.operators.state_space import CausalConv
from llmviewer.resource import vector
from llmviewer.techniques.latent import Mixing
from llmviewer.timelines.kinds import _GROUPS, Part, part_of_operator
from llmviewer.tracing.operators import TracedProduct

PACKAGES = ("operators", "architectures", "techniques", "tracing", "parallel", "transforms")
STANDING_FOR_OTHERS = {"Overlapped", "Surveyed"}  # instances have the kind of the operator that they stand for


def classes(of=Operator):
    for one in of.__subclasses__():
        yield one
        yield from classes(one)


def shipped():
    for name in PACKAGES:
        package = import_module(f"llmviewer.{name}")
        for module in iter_modules(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    return [one for one in classes() if one.__module__.startswith("llmviewer.")]


def test_every_operator_has_a_declared_kind():
    undeclared = {one.__name__ for one in shipped() if kind_of(one.kind).does.startswith("An operator of kind")}
    assert undeclared == STANDING_FOR_OTHERS


def test_symbols_of_operator_kinds_are_distinct():
    symbols = [symbol for one in {one.kind for one in shipped()} if (symbol := kind_of(one).symbol) != "circle-open"]
    assert len(symbols) == len(set(symbols)) > 10


def test_every_group_is_a_part_of_recorded_passes():
    assert _GROUPS.keys() == set(OperatorGroup)


def test_every_matrix_product_is_in_a_group_of_products():
    """Linears and products of activations, without convolutions, which are a part of recurrences."""
    products = {one.kind for one in shipped() if issubclass(one, Linear | BatchedProduct | TracedProduct | Mixing)}
    groups = {name: kind_of(name).group for name in products - {CausalConv.kind}}
    assert {*groups.values()} == {OperatorGroup.LINEAR, OperatorGroup.HEAD, OperatorGroup.EXPERTS}, groups
    assert {name for name in groups if not kind_of(name).product} == {"experts"}


def test_an_undeclared_kind_is_elementwise_and_unmeasured():
    kind = kind_of("gather")
    assert (kind.group, kind.product, kind.measured) == (OperatorGroup.ELEMENTWISE, False, "")
    assert "gather" not in traced_kinds()


def test_a_kind_is_declared_once():
    with pytest.raises(RuntimeError, match="operator kind 'linear' is declared twice"):
        declare(Linear.kind, "Again.")


def test_an_operator_is_replicated_unless_it_states_otherwise():
    assert Operator.sharding is Sharding.REPLICATED
    unstated = [one.__name__ for one in shipped() if one.__bases__ == (Linear,) and "sharding" not in vars(one)]
    assert not unstated, "a linear that is not divided as Linear is states that"


@dataclass(frozen=True, kw_only=True)
class Gather(Operator):
    """An operator that states nothing but its arithmetic."""

    kind: str = "gather"

    def arithmetic(self):
        return {vector("fp32"): self.outputs[0].elements}


@pytest.fixture
def gathering(tmp_path, monkeypatch):
    """A config whose layers end with a Gather."""

    def build(config, fmt):
        def gathered(block):
            if not block.layers:
                return block
            last = block.operators[-1]
            free = replace(last.result, name="scattered")
            gather = Gather(name="gather", inputs=(free,), outputs=(last.result,))
            return replace(block, operators=(*block.operators[:-1], replace(last, outputs=(free,)), gather))

        return FAMILIES["llama"].graph(config, fmt).map_blocks(gathered)

    monkeypatch.setitem(_BUILDERS, "gathering", build)
    path = tmp_path / "config.json"
    config = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8}
    path.write_text(json.dumps({"model_type": "gathering", "vocab_size": 1000, "torch_dtype": "bfloat16", **config}))
    return str(path)


@pytest.mark.parametrize("options", [{}, {"tp": 2}, {"quant": "W8A8KV8"}], ids=str)
def test_an_operator_that_states_only_its_arithmetic_is_bound_and_expected_by_its_traffic(gathering, options):
    phases = dict(analyze(gathering, "h100-sxm", **options).phases)
    (op,) = (op for op in phases["decode"].operators if op.name == "gather")
    assert op.bound_time_s > 0
    assert op.expected_low_s < op.expected_time_s < op.expected_high_s
    assert "no kernel measured; memory traffic only" in op.expectation_source
    assert part_of_operator(op) is Part.ELEMENTWISE


def test_an_operator_that_states_only_its_arithmetic_is_in_lists(gathering, capsys):
    assert main(["models", gathering, "--graph"]) == 0
    assert "gather (gather)" in capsys.readouterr().out
    assert main(["compare", gathering, "h100-sxm", "a100-sxm-80gb"]) == 0
