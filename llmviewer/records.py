"""`frozen`: frozen dataclasses that cost little to define and to make.

`dataclasses.dataclass(frozen=True)` compiles six methods of each class from source, 0.7 ms a class where `frozen` takes
0.04. An `analyze` defines some 160 classes, 29 % of its time, and makes few instances of most. `frozen` compiles the
`__init__` of a class alone, after so many instances that compiling it takes less time than it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field
from itertools import count
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, dataclass_transform, overload
from warnings import warn

T = TypeVar("T")


@dataclass(frozen=True)
class _PlainDataclass:
    """Frozen dataclass, the source of what dataclasses look for in `frozen` classes and their fields."""

    plain: int = 0


_INSTANCES_TO_COMPILE = 200  # compiling takes as long as some 200 instances gain
_CLASS_VARIABLES = ("ClassVar", "typing.ClassVar")  # beginning of annotations that are no fields
_FIELD_TYPE = vars(_PlainDataclass)["__dataclass_fields__"]["plain"]._field_type  # noqa: SLF001 - of no class variable


class RenamedField:
    """A field under its name of the last release, with a DeprecationWarning."""

    def __init__(self, new_name: str) -> None:
        self.new_name = new_name

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, record: object, owner: type) -> Any:
        if record is None:
            return self
        warn(f"{owner.__name__}.{self.name} is now {self.new_name}", DeprecationWarning, stacklevel=2)
        return getattr(record, self.new_name)


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, kw_only: bool = False, eq: bool = True, repr: bool = True) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T] | None = None, /, *, kw_only: bool = False, eq: bool = True, repr: bool = True) -> Any:  # noqa: A002 - as in dataclasses
    """`dataclasses.dataclass(frozen=True)`; `fields`, `replace` and `asdict` work, and dataclasses can inherit.

    kw_only  whether the fields defined here are keyword-only
    eq       whether instances are compared and hashed by their fields, and else by identity
    repr     whether the text of an instance lists its fields, and else is that of a base class
    """
    if cls is None:
        return lambda decorated: _frozen(decorated, kw_only=kw_only, eq=eq, described=repr)
    return _frozen(cls, kw_only=kw_only, eq=eq, described=repr)


def copied(record: T, **changes: object) -> T:
    """`dataclasses.replace` of a record without `__post_init__`, in a third of its time; names are not checked."""
    cls: type[T] = record.__class__
    copy, state = cls.__new__(cls), record.__dict__
    values = copy.__dict__
    for name in cls.__dataclass_fields__:  # type: ignore[attr-defined]  # not what cached properties hold
        values[name] = state[name]
    values.update(changes)
    return copy


def _frozen(cls: type[T], *, kw_only: bool, eq: bool, described: bool) -> type[T]:
    """Gives `cls` the fields of its annotations, and the methods that it lacks."""
    members = _inherited(cls) | _declared(cls, kw_only=kw_only)
    methods: dict[str, Any] = {
        "__init__": _init(cls, members),
        "__setattr__": _refuse_assignment,
        "__delattr__": _refuse_deletion,
    }
    if described:
        methods["__repr__"] = _repr(members)
    if eq:
        methods |= _comparison(members)
    defined = dict(vars(cls))
    if "__eq__" in defined and defined["__hash__"] is None:  # Python sets it beside an __eq__
        del defined["__hash__"]
    for name, method in methods.items():
        if name not in defined:
            method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
            setattr(cls, name, method)
    attributes: dict[str, Any] = {
        "__dataclass_fields__": members,
        "__dataclass_params__": vars(_PlainDataclass)["__dataclass_params__"],
        "__match_args__": tuple(name for name, one in members.items() if not one.kw_only),
    }
    for name, value in attributes.items():
        setattr(cls, name, value)
    return cls


def _inherited(cls: type) -> dict[str, Field[Any]]:
    """The fields of base classes."""
    members: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__[1:]):
        members |= vars(base).get("__dataclass_fields__", {})
    return members


def _declared(cls: type, *, kw_only: bool) -> dict[str, Field[Any]]:
    """The fields that `cls` annotates; their defaults become class attributes, as in a dataclass."""
    members: dict[str, Field[Any]] = {}
    for name, annotation in vars(cls).get("__annotations__", {}).items():
        if str(annotation).startswith(_CLASS_VARIABLES):
            continue
        default = vars(cls).get(name, MISSING)
        one: Field[Any] = default if isinstance(default, Field) else field(default=default)
        attributes = {"name": name, "type": annotation, "_field_type": _FIELD_TYPE}
        attributes["kw_only"] = kw_only if one.kw_only is MISSING else one.kw_only
        for attribute, value in attributes.items():
            setattr(one, attribute, value)
        if one.default is not MISSING:
            if one.default.__class__.__hash__ is None:
                raise ValueError(f"{cls.__name__}: {name} must have a default_factory, as its default can be changed")
            setattr(cls, name, one.default)
        elif name in vars(cls):  # made by a factory, or required
            delattr(cls, name)
        members[name] = one
    return members


def _init(cls: type, members: Mapping[str, Field[Any]]) -> Callable[..., None]:
    """`__init__` for any fields, which is replaced by one compiled for those of `cls` after some instances."""
    post_init, instances = hasattr(cls, "__post_init__"), count(1)
    refused = frozenset(name for name, one in members.items() if not one.init)
    positional = tuple(name for name, one in members.items() if one.init and not one.kw_only)
    defaults = {name: one.default for name, one in members.items() if one.default is not MISSING}
    factories = {name: one.default_factory for name, one in members.items() if one.default_factory is not MISSING}
    filled = (members.keys() - refused) | defaults.keys() | factories.keys()
    required = tuple(name for name in positional if name not in defaults and name not in factories)
    if required != positional[: len(required)]:
        raise TypeError(f"{cls.__name__}: {', '.join(required)} must precede the fields with a default")

    def init(self: Any, /, *values: object, **arguments: object) -> None:
        if values:
            arguments = _named(self, positional, values, arguments)
        state = self.__dict__
        state.update(defaults)
        for name, factory in factories.items():
            if name not in arguments:
                state[name] = factory()
        state.update(arguments)
        if state.keys() != filled or (refused and not refused.isdisjoint(arguments)):
            _refuse_arguments(self, members, arguments)
        if post_init:
            self.__post_init__()
        if next(instances) == _INSTANCES_TO_COMPILE and vars(cls).get("__init__") is init:
            compiled = _compiled_init(members, post_init=post_init)
            compiled.__qualname__ = init.__qualname__
            setattr(cls, "__init__", compiled)  # noqa: B010 - mypy takes no assignment to it

    return init


def _compiled_init(members: Mapping[str, Field[Any]], *, post_init: bool) -> Callable[..., None]:
    """`__init__` that sets the fields one by one; its errors are those of a function with the fields as parameters."""
    parameters: dict[bool, list[str]] = {False: [], True: ["*"]}  # by whether they are keyword-only
    lines, names = [], dict[str, Any]()
    for name, one in members.items():
        factory = one.default_factory is not MISSING
        names[f"_default_of_{name}"] = one.default_factory if factory else one.default
        value = f"_default_of_{name}()" if factory else f"_default_of_{name}"
        if one.init:
            required = one.default is MISSING and not factory
            parameters[bool(one.kw_only)].append(name if required else f"{name}=_MISSING")
            value = name if required else f"{value} if {name} is _MISSING else {name}"
        elif one.default is MISSING and not factory:
            continue
        lines.append(f"_state['{name}'] = {value}")
    lines += ["_self.__post_init__()"] * post_init
    signature = ", ".join(["_self", *parameters[False], *(parameters[True] if len(parameters[True]) > 1 else [])])
    body = "\n    ".join(["_state = _self.__dict__", *lines])
    exec(f"def __init__({signature}):\n    {body}", names | {"_MISSING": MISSING}, names)  # noqa: S102 - as dataclasses
    compiled: Callable[..., None] = names["__init__"]
    return compiled


def _named(
    self: object, names: tuple[str, ...], values: tuple[object, ...], keywords: dict[str, object]
) -> dict[str, object]:
    """Arguments by name.

    Raises TypeError for too many positional arguments, or for one that is given twice.
    """
    if len(values) > len(names):
        raise TypeError(f"{type(self).__name__} takes {len(names)} positional arguments; got {len(values)}")
    by_place = dict(zip(names, values, strict=False))
    if twice := by_place.keys() & keywords.keys():
        raise TypeError(f"{type(self).__name__} got multiple values for {', '.join(sorted(twice))}")
    return by_place | keywords


def _refuse_arguments(self: object, members: Mapping[str, Field[Any]], arguments: Mapping[str, object]) -> NoReturn:
    """Raises TypeError for arguments that are missing or unknown."""
    unknown = [name for name in arguments if name not in members or not members[name].init]
    missing = [name for name in members if name not in vars(self)]
    problem, names = ("unexpected keyword arguments", unknown) if unknown else ("missing arguments", missing)
    raise TypeError(f"{type(self).__name__}: {problem} {', '.join(names)}")


def _comparison(members: Mapping[str, Field[Any]]) -> dict[str, Any]:
    """`__eq__` and `__hash__` over the fields that compare."""
    compared = [name for name, one in members.items() if one.compare]
    hashed = [name for name, one in members.items() if (one.compare if one.hash is None else one.hash)]
    values, hashed_values = _getter(compared), _getter(hashed)

    def equal(self: object, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    def hashed_value(self: object) -> int:
        return hash(hashed_values(self))

    return {"__eq__": equal, "__hash__": hashed_value}


def _getter(names: list[str]) -> Callable[[object], object]:
    """The values of fields, as a tuple if there are several."""
    return attrgetter(*names) if names else lambda _: ()


def _repr(members: Mapping[str, Field[Any]]) -> Callable[[object], str]:
    """`__repr__` as a call with keyword arguments."""
    names = [name for name, one in members.items() if one.repr]

    def text(self: object) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return text


def _refuse_assignment(self: object, name: str, _value: object) -> NoReturn:
    raise FrozenInstanceError(f"{type(self).__name__}: cannot assign to {name!r}")


def _refuse_deletion(self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"{type(self).__name__}: cannot delete {name!r}")
