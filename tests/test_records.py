"""`frozen` classes behave as frozen dataclasses do."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, dataclass, field
from typing import ClassVar

import pytest

from llmviewer import records
from llmviewer.records import frozen


def classes(decorated):
    """A base with a default, a factory and a field that is not compared, and a subclass with a check."""

    @decorated(kw_only=True)
    class Base:
        size: int
        names: list = field(default_factory=list, compare=False)
        scale: float = 1.0
        units: ClassVar[int] = 3

    @decorated(kw_only=True)
    class Sub(Base):
        scale: float = 2.0
        label: str = field(repr=False)

        def __post_init__(self):
            if self.size < 0:
                raise ValueError("size")

    return Base, Sub


def as_dataclass(**arguments):
    return dataclass(frozen=True, **arguments)


OURS, THEIRS = classes(frozen), classes(as_dataclass)


@frozen
class Pair:
    first: int
    second: int = 5


def test_fields_values_and_text_are_those_of_a_dataclass():
    for ours, theirs in zip(OURS, THEIRS, strict=True):
        described = [
            [(f.name, f.type, f.default, f.kw_only, f.compare) for f in dataclasses.fields(each)]
            for each in (ours, theirs)
        ]
        assert described[0] == described[1]
        given = {name: value for name, value in {"size": 4, "label": "a"}.items() if name in ours.__dataclass_fields__}
        one, other = ours(**given), theirs(**given)
        assert dataclasses.asdict(one) == dataclasses.asdict(other)
        assert repr(one) == repr(other)
        assert dataclasses.asdict(dataclasses.replace(one, size=7)) == dataclasses.asdict(
            dataclasses.replace(other, size=7)
        )
        assert hasattr(ours, "size") == hasattr(theirs, "size")
        assert ours.scale == theirs.scale


def test_instances_compare_and_hash_by_their_compared_fields():
    base, sub = OURS
    assert base(size=1, names=["a"]) == base(size=1, names=["b"])
    assert hash(base(size=1, names=["a"])) == hash(base(size=1))
    assert base(size=1) != base(size=2)
    assert base(size=1) != sub(size=1, label="")
    assert base(size=1).names is not base(size=1).names


def test_own_methods_and_identity_are_kept():
    @frozen(eq=False)
    class Handle:
        number: int

    @frozen
    class Named:
        number: int

        def __hash__(self):
            return 7

        def __repr__(self):
            return "named"

    @frozen(repr=False)
    class Described(Named):
        """A record with the text of its base class."""

    assert repr(Described(1)) == "named"
    assert Handle(1) != Handle(1)
    assert hash(Named(1)) == 7
    assert Named(1) == Named(1)
    assert repr(Named(1)) == "named"


def test_fields_that_are_no_arguments_are_made_anew_for_each_instance():
    @frozen(kw_only=True)
    class Memo:
        size: int
        results: dict = field(default_factory=dict, init=False, compare=False)

    first = Memo(size=1)
    first.results["a"] = 1
    assert dataclasses.replace(first, size=2).results == {}
    with pytest.raises(TypeError, match="Memo: unexpected keyword arguments results"):
        Memo(size=1, results={})


def test_dataclasses_inherit_and_are_inherited():
    @dataclass(frozen=True, kw_only=True)
    class Plain(OURS[0]):
        depth: int = 2

    @frozen(kw_only=True)
    class Ours(Plain):
        width: int

    assert dataclasses.asdict(Ours(size=1, width=3)) == {"size": 1, "names": [], "scale": 1.0, "depth": 2, "width": 3}
    assert Plain(size=1) == Plain(size=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (OURS[0], "Base: missing arguments size"),
        (lambda: OURS[0](size=1, sise=2), "Base: unexpected keyword arguments sise"),
        (lambda: OURS[0](1), "Base takes 0 positional arguments; got 1"),
        (lambda: Pair(1, first=1), "Pair got multiple values for first"),
        (lambda: Pair(1, 2, 3), "Pair takes 2 positional arguments; got 3"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_checks_run_and_fields_stay():
    with pytest.raises(ValueError, match="size"):
        OURS[1](size=-1, label="")
    pair = Pair(1)
    with pytest.raises(FrozenInstanceError):
        pair.first = 2
    with pytest.raises(FrozenInstanceError):
        del pair.first
    assert pair == Pair(first=1, second=5) == copy.deepcopy(pair) == pickle.loads(pickle.dumps(pair))
    match pair:
        case Pair(first, second):
            assert (first, second) == (1, 5)


def test_required_positional_fields_come_first():
    with pytest.raises(TypeError, match="Late: last must precede"):

        @frozen
        class Late:
            first: int = 1
            last: int


def test_many_instances_are_made_as_the_first_are():
    """The compiled `__init__` has the same defaults, factories, checks and refusals."""

    @frozen
    class Place:
        row: int
        column: int = field(default=2, kw_only=True)
        notes: list = field(default_factory=list)
        seen: dict = field(default_factory=dict, init=False)
        level: float = field(default=0.5, init=False)

        def __post_init__(self):
            if self.row < 0:
                raise ValueError("row")

    general = Place.__init__
    first = [Place(1), Place(1, ["a"], column=3), Place(row=1, column=3, notes=["a"])]
    for _ in range(records._INSTANCES_TO_COMPILE):
        Place(1)
    assert Place.__init__ is not general
    later = [Place(1), Place(1, ["a"], column=3), Place(row=1, column=3, notes=["a"])]
    assert list(map(vars, later)) == list(map(vars, first))
    assert Place(1).notes is not Place(1).notes
    assert dataclasses.replace(later[1], row=4) == Place(4, ["a"], column=3)
    assert later[1] == first[1] == copy.deepcopy(later[1])
    with pytest.raises(ValueError, match="row"):
        Place(-1)
    for wrong in ({}, {"row": 1, "seen": {}}, {"row": 1, "rwo": 2}):
        with pytest.raises(TypeError, match=r"Place\.__init__"):
            Place(**wrong)
    with pytest.raises(TypeError, match="positional"):
        Place(1, [], 3)
    with pytest.raises(FrozenInstanceError):
        later[0].row = 2
