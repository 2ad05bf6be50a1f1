"""The report on the recordings of all ranks of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from statistics import fmean
from typing import Final

from llmviewer.timelines.ranks import RankedTimeline
from llmviewer.units import counted, fold, seconds

from . import timeline as one_rank
from .page_figures import Picture, picture
from .parts import Card
from .report import Report
from .tables import DASH, Item, Table, time_item

_MIN_SHARE: Final = 0.01  # of a pass, from which waiting is a remark
_MIN_IMBALANCE: Final = 1.02


def title(result: RankedTimeline) -> str:
    """Model, devices and phase of a run."""
    return (
        f"{result.analysis.model.title} on {counted(len(result.ranks), 'rank')} of "
        f"{result.analysis.hardware.title}: recorded {result.phase}"
    )


def headline(result: RankedTimeline) -> str:
    """Time of a pass beside the bound and the expected time."""
    slowest = result.timelines[result.slowest]
    expected = "" if slowest.expected_s is None else f", expected {seconds(slowest.expected_s)}"
    return (
        f"{title(result)}: batch {result.analysis.request.batch}, {result.analysis.inputs['layout'] or 'one device'}. "
        f"A pass takes {seconds(result.pass_s)}; >= {seconds(slowest.bound_s)}{expected} on the slowest rank."
    )


def remarks(result: RankedTimeline) -> list[str]:
    """The slowest rank, waiting, imbalance, overlap and bubbles; and what is slow on the slowest rank."""
    rank, slowest = result.ranks[result.slowest].rank, result.timelines[result.slowest]
    return [
        *_other_layout(result), *one_rank.missing_communication(slowest), *_slowest(result), *_experts(result),
        *_communication(result), *_pipeline(result),
        *one_rank.gaps(slowest, f"Rank {rank}: "),
    ]  # fmt: skip


def _other_layout(result: RankedTimeline) -> list[str]:
    """A remark if the analyzed layout has another number of devices than ranks were recorded."""
    devices = result.analysis.setting.layout.devices
    if devices == len(result.ranks):
        return []
    layout = result.analysis.inputs["layout"] or "one device"
    return [f"{counted(len(result.ranks), 'rank')} recorded; analyzed: {layout}, {counted(devices, 'device')}."]


def _slowest(result: RankedTimeline) -> list[str]:
    """The rank that the others wait for."""
    slowest = result.ranks[result.slowest]
    same_stage = [rank for rank in result.ranks if rank.stage == slowest.stage]
    if len(same_stage) < 2 or result.compute_imbalance < _MIN_IMBALANCE:
        sentences = ["Ranks compute equally long."] if len(same_stage) > 1 else []
    else:
        mean_s = fmean(rank.compute_s for rank in same_stage)
        excess = f"{seconds(slowest.compute_s)}, {slowest.compute_s / mean_s - 1:.0%} above the mean"
        gain = f"equal ranks make a pass {fold(result.balanced_speed_up)} faster"
        sentences = [f"Slowest: rank {slowest.rank} computes {excess}; {gain}."]
    waiting_s = result.mean_waiting_s
    if waiting_s is None:
        sentences.append("Waiting is unknown: ranks differ in the number of their collectives, or have none.")
    elif waiting_s > _MIN_SHARE * result.pass_s:
        sentences.append(
            f"Waiting for later ranks in collectives: {seconds(waiting_s)} of a pass on average "
            f"({waiting_s / result.pass_s:.0%})."
        )
    return sentences


def _experts(result: RankedTimeline) -> list[str]:
    if result.expert_imbalance is None or result.expert_imbalance < _MIN_IMBALANCE:
        return []
    most = max(result.ranks, key=lambda rank: rank.experts_s)
    excess = f"{seconds(most.experts_s)}, {result.expert_imbalance:.2f}x the mean"
    remedy = "redundant experts or another placement balance them (vLLM and SGLang: --enable-eplb)"
    return [f"Experts: rank {most.rank} takes {excess}; {remedy}."]


def _communication(result: RankedTimeline) -> list[str]:
    total_s = fmean(rank.communication_s for rank in result.ranks)
    if not total_s:
        return []
    overlapped_s = fmean(rank.overlapped_s for rank in result.ranks)
    exposed_s = total_s - overlapped_s
    overlap = f"{seconds(total_s)} of a pass, {overlapped_s / total_s:.0%} of it beside computation"
    return [f"Communication: {overlap}; {seconds(exposed_s)} exposed ({exposed_s / result.pass_s:.0%} of a pass)."]


def _pipeline(result: RankedTimeline) -> list[str]:
    """Idle share of each stage beside the expected bubble."""
    stages = sorted({rank.stage for rank in result.ranks if rank.stage is not None})
    texts = []
    for stage in stages:
        ranks = [rank for rank in result.ranks if rank.stage == stage]
        share = fmean(rank.idle_s / rank.pass_s for rank in ranks)
        expected = fmean(rank.expected_idle_share or 0.0 for rank in ranks)
        texts.append(f"stage {stage} {share:.0%} (expected {expected:.0%})")
    return [f"Pipeline bubbles, idle share of a pass: {', '.join(texts)}."] if texts else []


def basis(_: RankedTimeline) -> str:
    """Explanation of the columns."""
    return (
        "Times of a mean pass on each rank. compute: any kernel but communication runs; overlap: of communication, "
        "beside other kernels; waiting: in collectives, beyond the rank that entered last "
        "(`llmviewer docs timeline`)."
    )


def tables(result: RankedTimeline) -> list[Table]:
    """Ranks, and the parts of a pass on the slowest."""
    slowest = result.timelines[result.slowest]
    parts = one_rank.tables(slowest)[0]
    return [_ranks(result), replace(parts, title=f"Slowest rank, {result.ranks[result.slowest].rank}")]


def _ranks(result: RankedTimeline) -> Table:
    staged = any(rank.stage is not None for rank in result.ranks)
    experts = any(rank.experts_s for rank in result.ranks)
    head = ("rank", *["stage"] * staged, "pass", "compute", *["experts"] * experts, "communication", "overlap",
            "waiting", "idle")  # fmt: skip
    return Table(
        title="Ranks, time of a pass",
        about="",
        head=head,
        words=(),
        body=tuple(
            (
                Item(text=str(rank.rank), key=rank.rank),
                *[Item(text=str(rank.stage), key=rank.stage or 0)] * staged,
                time_item(rank.pass_s),
                time_item(rank.compute_s),
                *[time_item(rank.experts_s)] * experts,
                time_item(rank.communication_s),
                time_item(rank.overlapped_s),
                DASH if rank.waiting_s is None else time_item(rank.waiting_s),
                time_item(rank.idle_s),
            )
            for rank in result.ranks
        ),
    )


def _cards(result: RankedTimeline) -> list[Card]:
    slowest = result.ranks[result.slowest]
    waiting_s = result.mean_waiting_s
    return [
        Card(label="pass", value=seconds(result.pass_s), about="on the longest rank"),
        Card(label="slowest rank", value=str(slowest.rank), about=PurePath(slowest.file).name),
        Card(label="imbalance", value=fold(result.compute_imbalance, 3), about="most computation over the mean"),
        *([] if waiting_s is None else [
            Card(label="waiting", value=seconds(waiting_s), about=f"{waiting_s / result.pass_s:.0%} of a pass")]),
    ]  # fmt: skip


def _pictures(result: RankedTimeline) -> list[list[Picture]]:
    from .timeline_figures import rank_bars
    from .timeline_lanes import lane_figure, report_script

    lanes = lane_figure(result.timelines[result.slowest])
    drawn = [] if lanes is None else [[picture(lanes, "lanes", script=report_script(), scrollZoom=True)]]
    return [[picture(rank_bars(result), "ranks")], *drawn]


REPORT: Final = Report[RankedTimeline](
    name="ranks", title=title, headline=headline, tables=tables, remarks=remarks, basis=basis, cards=_cards,
    pictures=_pictures,
)  # fmt: skip
