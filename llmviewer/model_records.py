"""Records of shipped models: models/NAME.yaml and its line in models/index.json, from a config.json."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from . import model_index
from ._layout import IN_CHECKOUT, data_dir
from .documents import Section, parsed_folder, read_json
from .errors import InputError
from .hub import fetch, is_repository
from .model_files import load_model, model_facts, model_names, parse_model, unread_fields
from .writing import write_text

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]*")


def add_model(
    source: str, name: str, *, parameters: int, title: str = "", repository: str = ""
) -> tuple[Path, tuple[str, ...]]:
    """Writes the record of a model and its index lines; returns the file, and fields that no reader knows.

    source      path of a config.json or its folder, or org/name on the hub
    parameters  the published number, which the graph of the config must have
    repository  where a local config.json is published

    Raises InputError if the name is taken or invalid, or the config has another number of parameters.
    """
    if not IN_CHECKOUT:
        raise InputError("a model is added to a checkout of llmviewer; an installed package takes the path of a config")
    if not _NAME.fullmatch(name):
        raise InputError(f"a model's name must be small letters, digits, dots and hyphens; got {name!r}")
    if name in model_names():
        raise InputError(f"{name} is a model that ships; give another name")
    path, repository = _config_file(source, repository)
    config = read_json(path)
    unread, assumed = unread_fields(config)
    fields = _completed(config, unread, assumed)
    text = _yaml({
        "name": name,
        "title": title or name,
        "aliases": [repository] if is_repository(repository) else [],
        "source": {"repository": repository, "file": path.name},
        "parameters": parameters,
        "config": fields,
    })  # fmt: skip
    counted_parameters = parse_model(text, f"{name}.yaml", source=str(path)).parameters
    if counted_parameters != parameters:
        raise InputError(f"{source}: has {counted_parameters:,} parameters by its graph; --parameters must be the "
                         f"same; got {parameters:,}")  # fmt: skip
    record = data_dir("models") / f"{name}.yaml"
    write_text(record, f"# {title or name}.\n{text}")
    model_names.cache_clear()
    model_index.index.cache_clear()
    write_text(data_dir("models") / "parsed.json", parsed_folder(data_dir("models")))
    write_text(model_index.PATH, model_index.to_json(model_index.all_facts(lambda one: model_facts(load_model(one)))))
    model_index.index.cache_clear()
    return record, tuple(unread)


def _config_file(source: str, repository: str) -> tuple[Path, str]:
    """The config.json of a source, and where it is published."""
    if is_repository(source) and not Path(source).exists():
        config_path = fetch(source, "config.json")
        if config_path is None:
            raise InputError(f"{source}: has no config.json on the hub")
        return config_path, repository or source
    if not repository:
        raise InputError(f"{source}: a record names where its config is published; give --repository org/name")
    path = Path(source)
    return (path / "config.json" if path.is_dir() else path), repository


def _completed(config: Section, unread: Collection[str], assumed: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config without unread ones, and with those that it leaves to its class in transformers.

    Raises InputError if it leaves out a whole tower.
    """
    towers = [key for key, value in assumed.items() if value == "as a whole"]
    if towers:
        raise config.error(towers[0], "must be given: a record states all its towers")

    def complete_section(data: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        read_fields = {key: complete_section(value, f"{prefix}{key}.") if isinstance(value, Mapping) else value
                  for key, value in data.items() if f"{prefix}{key}" not in unread}  # fmt: skip
        class_defaults = {
            place.removeprefix(prefix): value
            for place, value in assumed.items()
            if place.rpartition(".")[0] == prefix[:-1]
        }
        return read_fields | class_defaults

    return complete_section(config.data, "")


def _yaml(document: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
