"""Write llmviewer/architectures/blocks/class_defaults.json: defaults of the config classes of transformers.

By model_type: numbers, flags, texts and flat lists that are the default of a field, and sections within; under "~"
other names of fields (attribute_map), under "=" what sections have that are left out. Fields whose default is null,
which a class derives from others, are left out.

    python tests/oracle/make_class_defaults.py           rewrite class_defaults.json
    python tests/oracle/make_class_defaults.py --check   exit 1 with one line for each difference
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import transformers
from make_flops import differences
from transformers import CONFIG_MAPPING, PretrainedConfig

from llmviewer.architectures import model_types

TABLE = Path(__file__).resolve().parents[2] / "llmviewer" / "architectures" / "blocks" / "class_defaults.json"
_COMMON = {field.name for field in dataclasses.fields(PretrainedConfig)} - {"tie_word_embeddings"}


def defaults(cls: type[PretrainedConfig]) -> dict[str, Any]:
    """Defaults of the fields of one class, and of the classes of its sections."""
    found: dict[str, Any] = {}
    made = _instance(cls)
    for field in dataclasses.fields(cls):
        if field.name in cls.sub_configs:
            part = vars(made).get(field.name) if made else None
            if isinstance(part, PretrainedConfig):
                found[field.name] = defaults(type(part))
                found.setdefault("=", {})[field.name] = _own(part, found[field.name])
            continue
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if field.name not in _COMMON and _plain(value):
            found[field.name] = list(value) if isinstance(value, tuple) else value
    if cls.attribute_map:
        found["~"] = dict(cls.attribute_map)
    return found


def _instance(cls: type[PretrainedConfig]) -> PretrainedConfig | None:
    try:
        return cls()
    except Exception:  # noqa: BLE001 a class that cannot do without fields
        return None


def _own(part: PretrainedConfig, usual: dict[str, Any]) -> dict[str, Any]:
    """Fields of a section that is left out, where they are not the defaults of its class."""
    values = {field.name: vars(part).get(field.name) for field in dataclasses.fields(part)}
    kept = {name: value for name, value in values.items() if name not in _COMMON and _plain(value)}
    return {"model_type": part.model_type, **{k: v for k, v in kept.items() if usual.get(k) != v}}


def _plain(value: Any) -> bool:
    simple = (bool, int, float, str)
    return isinstance(value, simple) or (
        isinstance(value, list | tuple) and all(isinstance(one, simple) for one in value)
    )


def main() -> int:
    transformers.logging.set_verbosity_error()
    found = {kind: defaults(CONFIG_MAPPING[kind]) for kind in model_types() if kind in CONFIG_MAPPING}
    if "--check" in sys.argv:
        lines = list(differences(json.loads(TABLE.read_text(encoding="utf-8")), json.loads(json.dumps(found))))
        print("\n".join(lines) or f"{TABLE.name}: {len(found)} types, no difference")
        return 1 if lines else 0
    rows = ",\n".join(f"{json.dumps(kind)}: {json.dumps(one)}" for kind, one in found.items())
    TABLE.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")
    print(f"{TABLE.name}: {len(found)} types written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
