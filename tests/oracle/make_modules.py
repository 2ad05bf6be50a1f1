"""List the tensors that transformers saves for one model of each layout of module names; write modules.json.

A model is built on the meta device (shapes only, no weights), and the names of its parameters and buffers are those of
save_pretrained: conversions that transformers makes when it loads are reverted. Names that differ only in numbers are
one line, with the elements of each and the runs of their numbers. Tied weights are saved once. tests/test_modules.py
requires that each tensor is claimed by the weights of our graph and that bytes agree, without torch.

    python tests/oracle/make_modules.py           rewrite modules.json
    ... --check                                   exit 1 where it differs
    ... --check --only gpt2,bamba-9b              of these models
    ... --every                                   compare every shipped model and every class of transformers with ours
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

import yaml

from llmviewer.architectures import builder, model_types
from llmviewer.documents import Section
from llmviewer.errors import InputError
from llmviewer.graph import Graph
from llmviewer.precision import BF16
from llmviewer.stored.formats import Stored
from llmviewer.stored.gguf_files import StoredTensor
from llmviewer.stored.module_names import layout_of
from llmviewer.stored.safetensors_modules import safetensors_checkpoint, spots
from llmviewer.transforms.quantize import ranges

HERE = Path(__file__).resolve().parent
MODELS = HERE.parent.parent / "models"
ORACLE = HERE / "modules.json"
LATEST = HERE / "latest.json"
# Of classes whose default sections do not fit each other, so that the model could not run: fields that make them fit.
_FITTING: Final = {"molmo2": {"adapter_config": {"text_hidden_size": 4096}}}
_NUMBER: Final = re.compile(r"(?<=[._])\d+(?=\.|$)|^\d+(?=\.)")


def sources() -> Iterator[tuple[str, dict[str, Any]]]:
    """Configs of shipped models, of the newest architectures, and of the class of each other type."""
    from make_parameters import specs

    for name, spec in specs().items():
        yield name, spec["config"]
    for name, spec in json.loads(LATEST.read_text(encoding="utf-8"))["models"].items():
        yield f"latest {name}", spec["config"]
    from transformers import AutoConfig

    for model_type in model_types():
        try:
            config = AutoConfig.for_model(model_type)
        except (ValueError, KeyError):
            continue
        fields = {key: value for key, value in config.to_dict().items() if value is not None}
        for section, changes in _FITTING.get(model_type, {}).items():
            fields[section] |= changes
        yield f"class {model_type}", json.loads(json.dumps(fields | {"model_type": model_type}, default=str))


def saved(config: Mapping[str, Any]) -> tuple[str, dict[str, int]] | None:
    """The class of a model and elements of each tensor that transformers saves; None where it does not build it."""
    import torch
    from make_parameters import TWINS, built, twin
    from transformers.core_model_loading import revert_weight_conversion

    fields = twin(config) if config["model_type"] in TWINS else dict(config)
    fields.pop("quantization_config", None)
    try:
        with torch.device("meta"):
            model = built(fields)
    except Exception:  # noqa: BLE001  # defaults of some classes are no model
        return None
    if model is None:
        return None
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    tensors = {name: prod(tensor.shape) for name, tensor in revert_weight_conversion(model, state).items()}
    return type(model).__name__, tensors


def folded(tensors: Mapping[str, int]) -> dict[str, list[list[Any]]]:
    """Names with "#" for numbers, each with elements and the runs of its numbers, a line for each rectangle of them."""
    places: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for name, numel in tensors.items():
        numbers = tuple(int(n) for n in _NUMBER.findall(name))
        places.setdefault((_NUMBER.sub("#", name), numel), []).append(numbers)
    found: dict[str, list[list[Any]]] = {}
    for (name, numel), numbers in places.items():
        rests: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for first in sorted({n[0] for n in numbers if n}):
            rests.setdefault(tuple(sorted(n[1:] for n in numbers if n[0] == first)), []).append(first)
        for rest, firsts in rests.items():
            columns = [sorted(set(column)) for column in zip(*rest, strict=True)]
            if prod(map(len, columns)) != len(rest):
                raise ValueError(f"{name}: numbers are no rectangle: {rest}")
            found.setdefault(name, []).append(
                [numel, ",".join(ranges(firsts)), *(",".join(ranges(c)) for c in columns)]
            )
        if numbers == [()]:
            found[name] = [[numel]]
    return found


def unfolded(lines: Mapping[str, Iterable[list[Any]]]) -> dict[str, int]:
    """The tensors of folded() again."""
    found: dict[str, int] = {}
    for name, entries in lines.items():
        for numel, *runs in entries:
            names = [name]
            for run in runs:
                numbers = [n for part in run.split(",") for n in _run(part)]
                names = [one.replace("#", str(n), 1) for one in names for n in numbers]
            found |= dict.fromkeys(names, numel)
    return found


def _run(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def difference(config: Mapping[str, Any], tensors: Mapping[str, int]) -> str:
    """The difference between a checkpoint with `tensors` and our graph; "": each tensor is claimed and bytes agree."""
    section = Section(dict(config), "config.json")
    graph = Graph(builder(section)(section, BF16).blocks)
    stored = {name: StoredTensor(name=name, shape=(numel,), format=BF16) for name, numel in tensors.items()}
    schemes = Stored(layout=layout_of(section))
    checkpoint = safetensors_checkpoint(stored, graph, model_format=BF16, schemes=schemes, file="checkpoint")
    sizes = {spot: weight.numel for _, weight, spot in spots(graph)}
    held = sum(
        checkpoint.formats[spot].stored_bits * numel for spot, numel in sizes.items() if spot in checkpoint.formats
    )
    bits = sum(map(prod, (t.shape for t in stored.values()))) * BF16.bits
    extra = () if abs(held - bits) < 1 else (f"{held / 8:,.0f} of {bits / 8:,.0f} bytes",)
    return "; ".join((*checkpoint.notes, *extra))


def representatives() -> dict[str, dict[str, Any]]:
    """One config of each layout: of the smallest model that transformers builds, and that ours agrees with."""
    from make_parameters import TWINS

    found: dict[int, tuple[str, dict[str, Any], dict[str, int]]] = {}
    for name, config in sources():
        section = Section(dict(config), name)
        key = id(layout_of(section))
        if config["model_type"] in TWINS or (key in found and not _smaller(name, found[key][0])):
            continue
        built_as = saved(config)
        if built_as is None:
            continue
        config["architectures"] = config.get("architectures") or [built_as[0]]
        try:
            if not difference(config, built_as[1]):
                found[key] = name, config, built_as[1]
        except InputError:
            continue
    return {
        name: ({} if _file(name).exists() else {"config": config}) | {"tensors": folded(tensors)}
        for name, config, tensors in sorted(found.values(), key=lambda one: one[0])
    }


def _smaller(name: str, other: str) -> bool:
    if not (_file(name).exists() and _file(other).exists()):
        return False
    first, second = (yaml.safe_load(_file(one).read_text(encoding="utf-8"))["parameters"] for one in (name, other))
    return bool(first < second)


def _file(name: str) -> Path:
    return MODELS / f"{name}.yaml"


def config_of(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The config of an entry of modules.json."""
    found: dict[str, Any] = entry.get("config") or yaml.safe_load(_file(name).read_text(encoding="utf-8"))["config"]
    return found


def every() -> int:
    """Prints each difference between transformers and ours; the number of models."""
    from make_parameters import TWINS

    count = 0
    for name, config in sources():
        built_as = saved(config) if config["model_type"] not in TWINS else None
        if built_as is None:
            continue
        count += 1
        config["architectures"] = config.get("architectures") or [built_as[0]]
        try:
            said = difference(config, built_as[1])
        except InputError as error:
            said = str(error)
        if said:
            print(f"{name}: {said}", flush=True)
    return count


def main() -> int:
    if "--every" in sys.argv:
        print(f"{every()} models compared")
        return 0
    import transformers
    from make_flops import chosen, options, settle

    args = options("Make or check tests/oracle/modules.json.")
    if args.check:
        stored = json.loads(ORACLE.read_text(encoding="utf-8"))["models"]
        models = {}
        for name in chosen(stored, args.only):
            built_as = saved(config_of(name, stored[name]))
            models[name] = {**stored[name], "tensors": folded(built_as[1] if built_as else {})}
    else:
        models = representatives()
    found = {"meta": {"transformers": transformers.__version__}, "models": models}
    return settle(ORACLE, found, ("models",), args=args)


if __name__ == "__main__":
    sys.exit(main())
