"""Amounts of a workload in words, so that a formula can be read without knowing how this program is written."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

from llmviewer.forms import Feature, Form, Num
from llmviewer.workload import Workload

_TIMES: Final = "\N{MULTIPLICATION SIGN}"
FEATURES: Final[Mapping[str, str]] = {  # methods of Workload; what they take stands in its place
    "one": "pass",
    "sequences": "sequences",
    "tokens": "tokens",
    "logits": "tokens with logits",
    "with_logits": "pass with logits",
    "table_rows": "rows of the table that are looked up",
    "pairs": "query-key pairs",
    "cells": "query-key cells",
    "kv_tokens": "cached tokens attended to",
    "kv_streams": "cached tokens read, by as many queries at a time as the chip holds",
    "chunked_pairs": "query-key pairs within chunks of {0:,g} positions",
    "chunked_kv": "cached tokens within chunks of {0:,g} positions",
    "chosen_kv": "cached tokens read, {0:,g} chosen for each query",
    "kv_pages": "cached tokens that pages of {0:,g} have room for",
    "touched_kv": "cached tokens read, {0:.3g} of them by each query",
    "near_pairs": "pairs of tokens no more than {0:,g} apart",
    "chunk_pairs": "pairs of tokens within chunks of {0:,g}",
    "cross_pairs": "pairs of a token of the decoder and one of its encoder",
    "source_kv": "tokens of the encoder attended to",
    "source_tokens": "tokens of the encoder that stay",
    "distinct_experts": "experts that some token chose, each {1:,g} of {0:,g}",
    "expert_rows": "rows of {0:,g} experts with places for {2:g} times their part",
    "fft": "points of Fourier transforms times their logarithm",
}
STREAMS: Final[Mapping[str, str]] = {  # the parts of a pass that some blocks see
    "": "",
    "source": "of the encoder",
    "target": "of the decoder",
    "images": "of images of {0:,g} patches",
    "text_tokens": "without images of {0:,g} tokens each",
    "with_images": "of sequences with images of {0:,g} tokens",
    "denoising": "of the action decoder over {0:,g} tokens",
    "logit_tokens": "of tokens with logits",
    "replicas": "of {0:,g} ranks together",
    "sampled": "of {0:.3g} of the tokens",
    "pass_fraction": "of {0:.3g} of the passes",
    "thinned": "of {0:.3g} of the tokens, before and now",
    "single": "of sequences taken as one token",
    "evicted": "with {0:,g} tokens left of those before",
}
_WINDOWS: Final = ("pairs", "cells", "kv_tokens", "kv_streams")  # whose last argument is one


def formula(form: Form, workload: Workload) -> str:
    """Such as "469,762,048 x 16 tokens + 8 x 1,040 query-key pairs", with a sign for the x."""
    parts = []
    for feature, coefficient in form.terms:
        amount = f"{coefficient:,.12g}"
        parts.append(
            amount if str(feature) == "one" else f"{amount} {_TIMES} {_count(feature.of(workload))} {words(feature)}"
        )
    return " + ".join(parts)


def words(feature: Feature) -> str:
    """The name of a feature, such as "query-key pairs in a window of 4,096"."""
    name = FEATURES[feature.name].format(*feature.arguments)
    if feature.name == "distinct_experts" and feature.arguments[0] == 1:
        name = "experts that some token chose"
    if feature.name in _WINDOWS and feature.arguments[-1] < inf:
        name += f" in a window of {feature.arguments[-1]:,g}"
    whole = feature.stream.name == "replicas" and feature.stream.arguments == (1,)
    part = "" if whole else STREAMS[feature.stream.name].format(*feature.stream.arguments)
    return f"{name} {part}".rstrip()


def _count(value: Num) -> str:
    return f"{float(value):,.0f}" if float(value).is_integer() else f"{float(value):,.4g}"
