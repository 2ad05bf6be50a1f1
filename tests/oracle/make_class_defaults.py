"""Write llmviewer/architectures/class_defaults.json: defaults of the config classes of transformers.

By model_type: numbers, flags, texts and flat lists that are the default of a field, sections within, and under "~"
other names of fields (attribute_map). Fields whose default is null, which a class derives from others, are left out.

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

TABLE = Path(__file__).resolve().parents[2] / "llmviewer" / "architectures" / "class_defaults.json"
_COMMON = {field.name for field in dataclasses.fields(PretrainedConfig)} - {"tie_word_embeddings"}


def defaults(cls: type[PretrainedConfig]) -> dict[str, Any]:
    """Defaults of the fields of one class, and of the classes of its sections."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        part = cls.sub_configs.get(field.name)
        if part is not None:
            if dataclasses.is_dataclass(part):
                found[field.name] = defaults(part)
            continue
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if field.name not in _COMMON and _plain(value):
            found[field.name] = list(value) if isinstance(value, tuple) else value
    if cls.attribute_map:
        found["~"] = dict(cls.attribute_map)
    return found


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
