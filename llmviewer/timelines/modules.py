"""Modules of torch around the calls of kernels: evidence of what a kernel computes, besides its name.

A path has the modules around a call, the outermost first: with the number of each among those of its class, as
with_stack=True records them ("Qwen2MLP_3.Linear_21"), or with their attributes' names, as with_modules=True does for
TorchScript ("3(Layer)::forward.mlp(MLP)::forward.up_proj(Linear)::forward.").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import yaml

HEAD: Final = "head"
MIXER: Final = "mixer"
MLP: Final = "mlp"
_CLASSES: Final = Path(__file__).with_name("module_classes.yaml")
_NUMBERED: Final = re.compile(r"(?P<type>\w*?)_\d+$")
_ATTRIBUTE: Final = re.compile(r"(?P<attribute>\w+)\((?P<type>\w*)\)")
_OF_MLP: Final = re.compile(r"(^|_)((gate|up|down|gate_up)_proj|router|fc[12])|^(shared|expert|mlp)_")
_MERGED: Final = re.compile(r"^qkv|merged|fused|packed|gate_?up", re.IGNORECASE)
_LINEAR: Final = re.compile(r"linear$|lm_?head$|^conv1d$", re.IGNORECASE)
_PRODUCT_NAME: Final = re.compile(r"(\w+_)?(proj|head)$")
_MAX_CACHED: Final = 4096  # paths, which files of users have
_MIN_SHARE: Final = 0.9  # of the launches of a name, from which their modules decide its part


class ModuleOfCall(NamedTuple):
    """A module around a call: its class, and its name in the module that has it ("" if not recorded)."""

    type: str
    attribute: str = ""


@lru_cache(_MAX_CACHED)
def modules_of(path: str) -> tuple[ModuleOfCall, ...]:
    """The modules of a path, the outermost first."""
    if attributes := list(_ATTRIBUTE.finditer(path)):
        return tuple(ModuleOfCall(one["type"], one["attribute"]) for one in attributes)
    return tuple(ModuleOfCall(match["type"]) for each in path.split(".") if (match := _NUMBERED.match(each)))


@lru_cache(_MAX_CACHED)
def role_of(path: str) -> str:
    """The role of the matrix products in the modules of a path; "" if it is unknown."""
    return next((role for one in reversed(modules_of(path)) if (role := _meaning(one.type).role)), "")


def role_of_operator(name: str, *, in_layer: bool) -> str:
    """The role of a matrix product of the model."""
    return (MLP if _OF_MLP.search(name) else MIXER) if in_layer else HEAD


def agrees(path: str, operators: tuple[str, ...], *, in_layer: bool, mergeable: bool) -> bool | None:
    """Whether modules can be those of one kernel for `operators`; None if a path tells nothing of it.

    in_layer   whether the operators are in a layer
    mergeable  whether the kernel could compute further operators, which read the same tensor
    """
    role, modules = role_of(path), modules_of(path)
    if not role:
        return None
    if role != role_of_operator(operators[0], in_layer=in_layer):
        return False
    attribute = modules[-1].attribute
    if len(operators) == 1 and _PRODUCT_NAME.match(attribute) and _PRODUCT_NAME.match(operators[0]):
        return attribute == operators[0] or not mergeable
    return not (mergeable and _MERGED.search(modules[-1].type))


def is_one_product(path: str) -> bool:
    """Whether all kernels of a module belong to one product."""
    modules = modules_of(path)
    return bool(modules and _LINEAR.search(modules[-1].type))


def parts_by_module(names: Iterable[str], paths: Iterable[str]) -> Mapping[str, str]:
    """The part of each kernel name that modules of one kind alone launch.

    names, paths  one per launch
    """
    counts: dict[str, Counter[str]] = {}
    for name, path in zip(names, paths, strict=True):
        if path:
            counts.setdefault(name, Counter())[_part_of(path)] += 1
    commonest = {name: count.most_common(1)[0] for name, count in counts.items()}
    return {name: part for name, (part, n) in commonest.items() if part and n >= _MIN_SHARE * counts[name].total()}


@lru_cache(_MAX_CACHED)
def _part_of(path: str) -> str:
    modules = modules_of(path)
    return _meaning(modules[-1].type).part if modules else ""


class _Meaning(NamedTuple):
    role: str = ""
    part: str = ""


@lru_cache(_MAX_CACHED)
def _meaning(type_name: str) -> _Meaning:
    return next((meaning for pattern, meaning in _patterns() if pattern.search(type_name)), _Meaning())


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], _Meaning], ...]:
    return tuple(
        (re.compile("|".join(entry["classes"]), re.IGNORECASE), _Meaning(entry.get("role", ""), entry.get("part", "")))
        for entry in yaml.safe_load(_CLASSES.read_text(encoding="utf-8"))
    )
