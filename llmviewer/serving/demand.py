"""The demand of requests on a replica: their lengths, and the time to prefill prompts while sequences decode."""

from __future__ import annotations

from math import nan
from typing import Final, NamedTuple

import numpy as np

from ..workload import Spans
from .lengths import Tokens
from .markov_chain import Column
from .policy import Policy
from .steps import Steps
from .traffic import Traffic

_SAMPLES: Final = 128  # quantiles of lengths, and groups of prompts, that represent all requests


class Demand(NamedTuple):
    """Lengths of requests at even quantiles, each sorted by itself. [tokens]

    new     uncached tokens of each prompt
    passes  passes of each request, its prefill included
    groups  mean prompts of groups with similar uncached tokens, and `shares` of all prompts in each group
    read    mean uncached tokens of these groups
    decode_steps  mean decode steps of a request
    steps_per_token  mean decode steps for each output token after the first
    middle  mean context of a decoding sequence, and `unshared` without the prefix that it shares with others
    """

    prompt: Column
    new: Column
    gen: Column
    passes: Column
    groups: Column
    shares: Column
    read: Column
    decode_steps: float
    steps_per_token: float
    middle: float
    unshared: float

    @classmethod
    def of(cls, traffic: Traffic, steps: Steps) -> Demand:
        count, passes = min(_SAMPLES, len(traffic)), traffic.progress.passes
        place = ((np.arange(count) + 0.5) * len(traffic) / count).astype(int)
        reads = traffic.prompt - steps.hit_tokens(traffic)
        prompt, new, gen, sampled_passes = (
            np.sort(lengths)[place].astype(float) for lengths in (traffic.prompt, reads, traffic.gen, passes)
        )
        share = traffic.gen / np.sum(traffic.gen)
        common = np.broadcast_to(steps.shared_prefix_tokens(traffic.prompt), len(traffic))
        read, groups, shares = _grouped(reads, traffic.prompt)
        several = traffic.gen > 1
        middle = float(share @ (traffic.prompt + traffic.gen / 2))
        return cls(
            prompt=prompt, new=new, gen=gen, passes=sampled_passes, groups=groups, shares=shares, read=read,
            decode_steps=float(np.mean(passes)) - 1,
            steps_per_token=(
                float(np.mean((passes[several] - 1) / (traffic.gen[several] - 1))) if np.any(several) else nan
            ),
            middle=middle, unshared=middle - float(share @ common),
        )  # fmt: skip


def _grouped(lengths: Tokens, others: Tokens) -> tuple[Column, Column, Column]:
    """Groups of prompts with equal sums of squared lengths, shortest first: mean lengths, means of others, and shares.

    Waiting grows with the squares, to which the few longest prompts contribute most.
    """
    order = np.argsort(lengths, kind="stable")
    ordered, ordered_others = lengths[order].astype(float), others[order].astype(float)
    sums = np.cumsum(ordered**2)
    group = np.ceil(sums / sums[-1] * _SAMPLES - 1e-9).astype(int)
    counts = np.bincount(group)
    nonempty = counts > 0
    means, other_means = (np.bincount(group, each)[nonempty] / counts[nonempty] for each in (ordered, ordered_others))
    return means, other_means, counts[nonempty] / len(ordered)


class Prompts(NamedTuple):
    """Prefill of a request, by the number of sequences that decode.

    time_s               mean time of the device [s]
    unevenness           mean squared time over the square of the mean; 1 for equal prompts
    decoding_steps       steps of the prefill in which sequences also decode
    full_steps           the fewest steps of a prefill, where steps are full
    more_s               excess of the last chunk of a prompt, in a step of its own, over its share of others [s]
    every_s              time of the device for each prompt of steps that are full in all lanes [s]
    max_prompts          prompts of such a step; 1 for each lane if a prompt takes several
    """

    time_s: Column
    unevenness: Column
    decoding_steps: Column
    full_steps: Column
    more_s: Column
    every_s: Column
    max_prompts: Column | int


def prompts_of(steps: Steps, lengths: Demand, policy: Policy, batch: Column) -> Prompts:
    """Prefills of prompts, in steps with `batch` decoding sequences if the policy mixes.

    The chunks of a prompt differ in the tokens before them; the middle chunk stands for all, as time is linear in that.
    """
    prompt, others = lengths.groups[:, None], batch[None, :] if policy.mixes else np.zeros((1, 1))
    new = lengths.read[:, None]
    decode_tokens = steps.width * others
    token_budget = (
        np.maximum(policy.budget - decode_tokens, 1) if policy.cuts else np.maximum(policy.budget, new + 0 * others)
    )
    part = np.minimum(new, token_budget)
    parts = new / part
    decoding = steps.decoding_group(others, lengths.middle)

    def step_s(tokens: Column, end: Column, count: Column | float = 1.0) -> Column:
        read = Spans(batch=count, q_len=tokens, kv_len=end, logits=np.minimum(1 / parts, tokens))
        return np.asarray(steps.mixed_s((decoding, read)), dtype=float)

    middle = prompt - (new - part) / 2
    each_s = step_s(part, middle)
    count = token_budget / part if policy.cuts else token_budget // new
    every_s = parts * each_s if np.all(count == 1) else parts * step_s(part, middle, count) / count
    rest = new - np.floor(parts) * part
    more_s = np.zeros(each_s.shape)
    if np.any(rest > 0):
        more_s = np.where(rest > 0, step_s(np.maximum(rest, 1e-3), prompt) - rest / part * each_s, 0.0)
    shape = (len(prompt), len(batch))
    time_s, parts, more_s, every_s = (np.broadcast_to(a, shape) for a in (parts * each_s, parts, more_s, every_s))
    decoding_steps = lengths.shares @ parts if policy.mixes else np.zeros(len(batch))
    mean = float(lengths.shares @ lengths.read)
    max_prompts = token_budget[0] / mean if policy.cuts else max(int(policy.budget // mean), 1)
    full_steps, max_prompts = np.maximum(1 / max_prompts, 1), np.maximum(max_prompts, 1)
    time_s, square, more_s, every_s = (lengths.shares @ each for each in (time_s, time_s**2, more_s, every_s))
    if not policy.cuts and max_prompts == 1:
        every_s = time_s
    return Prompts(
        time_s,
        square / time_s**2,
        decoding_steps,
        full_steps,
        more_s,
        every_s / steps.micro_batches,
        steps.micro_batches * max_prompts,
    )
