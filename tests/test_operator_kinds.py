"""An operator states its kind and how it is divided among ranks; what it leaves out has a lawful default."""

from importlib import import_module
from pkgutil import iter_modules

import pytest

from llmviewer.operators.base import Operator, Sharding
from llmviewer.operators.kinds import OperatorGroup, declare, kind_of, traced_kinds
from llmviewer.operators.linear import Linear
from llmviewer.operators.pictures import BatchedProduct
from llmviewer.operators.state_space import CausalConv
from llmviewer.techniques.latent import Mixing
from llmviewer.timelines.kinds import _GROUPS
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


def test_symbols_tell_kinds_apart():
    symbols = [symbol for one in {one.kind for one in shipped()} if (symbol := kind_of(one).symbol) != "circle-open"]
    assert len(symbols) == len(set(symbols)) > 10


def test_every_group_is_a_part_of_recorded_passes():
    assert _GROUPS.keys() == set(OperatorGroup)


def test_every_matrix_product_is_in_a_group_of_products():
    """Of linears and products of activations, but convolutions, which are a part of recurrences."""
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
