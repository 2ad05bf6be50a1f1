"""YAML without tags that make objects, by PyYAML, which takes 30 ms to import."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Final

import yaml

YAMLError = yaml.YAMLError


class _Loader(yaml.CSafeLoader):
    """Mappings, lists, text, numbers, true, false and null; no other tag, and no key twice.

    Numbers are those of YAML 1.2, and there are no dates: 1e12 is a number and 2022-10-01 is text.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT002
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a key must be plain text", key_node.start_mark)
            if key in keys:
                mark = key_node.start_mark
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands twice", mark)
            keys.add(key)
        return super().construct_mapping(node, deep=deep)

    def scalar(self, node: yaml.ScalarNode) -> bool | int | float:
        """A value of `_SCALARS`.

        Raises ConstructorError if a tag claims another kind of value than the text has.
        """
        text = self.construct_scalar(node)
        if self.resolve(yaml.ScalarNode, text, (True, False)) != node.tag:  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(None, None, f"{text!r} is no {node.tag}", node.start_mark)
        return _SCALARS[node.tag.removeprefix(_TAG)][1](text.lower())


_TAG: Final = "tag:yaml.org,2002:"
_SCALARS: Final[Mapping[str, tuple[str, Callable[[str], bool | int | float], str]]] = {
    "bool": (r"true|True|false|False", "true".__eq__, "tTfF"),
    "int": (r"[-+]?[0-9]+", int, "-+0123456789"),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf)|\.(?:nan|NaN)",
        lambda text: float(text.replace(".inf", "inf").replace(".nan", "nan")),
        "-+0123456789.",
    ),
}  # by tag: pattern, conversion, first characters
_OTHER_TAGS: Final = (f"{_TAG}null", f"{_TAG}str", f"{_TAG}seq", f"{_TAG}map")
_Loader.yaml_constructors = {
    tag: make for tag, make in yaml.CSafeLoader.yaml_constructors.items() if tag in (*_OTHER_TAGS, None)
} | {f"{_TAG}{name}": _Loader.scalar for name in _SCALARS}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _OTHER_TAGS]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
for _name, (_pattern, _, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"^(?:{_pattern})$"), list(_first))


def load(text: str) -> Any:
    """The value of a text in YAML.

    Raises YAMLError if it is not YAML, ValueError for a number of too many digits, RecursionError for deep nesting.
    """
    return yaml.load(text, Loader=_Loader)  # noqa: S506


def depths(text: str) -> Iterator[int]:
    """The nesting depth of each part of a document."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        yield depth
