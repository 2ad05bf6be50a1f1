"""Formulas of amounts in words and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

from llmviewer.forms import Feature, Form, Num
from llmviewer.workload import Workload

_TIMES: Final = "\N{MULTIPLICATION SIGN}"
FEATURES: Final[Mapping[str, str]] = {  # methods of Workload; braces hold their arguments
    "one": "pass",
    "sequences": "sequences",
    "tokens": "tokens",
    "logits": "tokens with logits",
    "with_logits": "pass with logits",
    "table_rows": "rows looked up in the table",
    "pairs": "query-key pairs",
    "cells": "query-key cells",
    "kv_tokens": "cached tokens attended to",
    "kv_streams": "cached tokens read, once per tile of queries",
    "chunked_pairs": "query-key pairs within chunks of {0:,g} positions",
    "chunked_kv": "cached tokens within chunks of {0:,g} positions",
    "chosen_kv": "cached tokens read, {0:,g} selected per query",
    "kv_pages": "cached tokens, rounded up to pages of {0:,g}",
    "touched_kv": "cached tokens read, a share of {0:.3g} by each query",
    "near_pairs": "pairs of tokens at most {0:,g} apart",
    "chunk_pairs": "pairs of tokens within chunks of {0:,g}",
    "cross_pairs": "pairs of decoder and encoder tokens",
    "source_kv": "encoder tokens attended to",
    "source_tokens": "cached encoder tokens",
    "distinct_experts": "experts selected by any token, {1:,g} of {0:,g} per token",
    "busiest_experts": "experts selected by any token on the busiest of {2:,g} ranks, {1:,g} of {0:,g} per token",
    "expert_rows": "rows of {0:,g} experts with a capacity factor of {2:g}",
    "fft": "points of Fourier transforms times their logarithm",
    "history_fft": "points of Fourier transforms of whole contexts times their logarithm",
    "longest_context": "tokens of the longest sequence",
}
STREAMS: Final[Mapping[str, str]] = {  # parts of the workload that some blocks process
    "": "",
    "source": "of the encoder",
    "target": "of the decoder",
    "images": "of images of {0:,g} patches",
    "text_tokens": "other than images of {0:,g} tokens each",
    "with_images": "with images of {0:,g} tokens",
    "denoising": "of the action decoder over {0:,g} tokens",
    "logit_tokens": "of tokens with logits",
    "replicas": "of {0:,g} ranks",
    "batch_share": "of the sequences of one of {0:,g} ranks",
    "sampled": "for a share of {0:.3g} of the tokens",
    "sampled_sequences": "for a share of {0:.3g} of the sequences",
    "pass_fraction": "in a share of {0:.3g} of the passes",
    "thinned": "for a share of {0:.3g} of cached and new tokens",
    "resized": "at a resolution with a share of {0:.3g} of the positions",
    "single": "of sequences as one token each",
    "evicted": "with {0:,g} cached tokens retained",
}
_WINDOWS: Final = ("pairs", "cells", "kv_tokens", "kv_streams")  # features whose last argument is a window


def formula(form: Form, workload: Workload) -> str:
    """An amount such as "469,762,048 x 16 tokens + 8 x 1,040 query-key pairs", with a multiplication sign."""
    parts = []
    for feature, coefficient in form.terms:
        amount = f"{coefficient:,.12g}"
        parts.append(
            amount
            if str(feature) == "one"
            else f"{amount} {_TIMES} {_count(feature.of(workload))} {feature_text(feature)}"
        )
    return " + ".join(parts)


def feature_text(feature: Feature) -> str:
    """Name of a feature, such as "query-key pairs in a window of 4,096"."""
    name = FEATURES[feature.name].format(*feature.arguments)
    if feature.name == "distinct_experts" and feature.arguments[0] == 1:
        name = "experts selected by any token"
    if feature.name in _WINDOWS and feature.arguments[-1] < inf:
        name += f" in a window of {feature.arguments[-1]:,g}"
    on_all_ranks = feature.stream.name == "replicas" and feature.stream.arguments == (1,)
    part = "" if on_all_ranks else STREAMS[feature.stream.name].format(*feature.stream.arguments)
    return f"{name} {part}".rstrip()


def _count(value: Num) -> str:
    return f"{float(value):,.0f}" if float(value).is_integer() else f"{float(value):,.4g}"
