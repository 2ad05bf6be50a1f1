"""What the text_config of a model that sees may leave out: the defaults of its class in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_FIELDS: Final = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
)  # fmt: skip
_SIZES: Final = {  # None is one key-value head for each head
    "llama": (32000, 4096, 11008, 32, 32, None),
    "mistral": (32000, 4096, 14336, 32, 32, 8),
    "qwen2": (151936, 4096, 22016, 32, 32, 32),
    "qwen3": (151936, 4096, 22016, 32, 32, 32),
    "gemma": (256000, 3072, 24576, 28, 16, 16),
    "gemma2": (256000, 2304, 9216, 26, 8, 4),
    "gemma3_text": (262208, 2304, 9216, 26, 8, 4),
    "cohere2": (256000, 8192, 22528, 40, 64, None),
    "granite": (32000, 4096, 11008, 32, 32, None),
    "phi3": (32064, 3072, 8192, 32, 32, None),
}
TEXTS: Final[Mapping[str, Mapping[str, int | None]]] = {
    kind: dict(zip(_FIELDS, sizes, strict=True)) for kind, sizes in _SIZES.items()
}
