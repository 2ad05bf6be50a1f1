"""Work of the launches of an operator."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ...forms import ONE, Form, Num, Stream, batch_share, evaluate, total
from ...operators.attention import Attention
from ...operators.base import Operator
from ...operators.masks import ShardedSequences
from ...parallel.overlap import Overlapped
from ...records import frozen
from ...roofline import OperatorEstimate, PlannedOperator
from ...workload import Spans, Thinned, Workload

_ALWAYS: Final[Num] = 1.0
_CROSS_STREAMS: Final = ("target", "with_images")  # streams whose tokens attend to keys of another stream


@frozen(kw_only=True)
class LaunchWork:
    """An operator, without the collective that it may overlap with, and the work of a launch that takes place: an
    estimate has means over all passes, including those that no token reaches.

    stream           the part of a pass that it sees
    run_probability  fraction of passes in which it runs
    library          library whose kernels run
    half             16-bit type that the device computes in
    """

    op: Operator
    row: OperatorEstimate
    workload: Workload
    stream: Stream
    run_probability: Num
    library: str
    half: str

    @classmethod
    def of_row(cls, row: OperatorEstimate, workload: Workload, *, library: str, half: str) -> LaunchWork:
        op = row.operator.first if isinstance(row.operator, Overlapped) else row.operator
        stream, run_probability = stream_of(row), _ALWAYS
        if stream.name:
            expected_runs = evaluate(ONE.on(stream), workload)
            run_probability = np.where(np.greater(expected_runs, 0), expected_runs, 1.0)[()]
        return cls(
            op=op,
            row=row,
            workload=workload,
            stream=stream,
            run_probability=run_probability,
            library=library,
            half=half,
        )

    def of(self, form: Form) -> Num:
        return evaluate(form.on(self.row.block.stream), self.workload) / self.run_probability

    @property
    def ops(self) -> Num:
        is_row_operator = self.op is self.row.operator
        return self.row.ops / self.run_probability if is_row_operator else self.of(total(self.op.arithmetic().values()))

    @property
    def nbytes(self) -> Num:
        return self.row.bytes / self.run_probability if self.op is self.row.operator else self.of(self.op.work().nbytes)

    def part(self, spans: Spans) -> Workload:
        """Workload of one of `groups`, within the part of a pass that the operator sees."""
        workload = Workload((spans,))
        return replace(workload.target(), groups=(spans,)) if self.stream.name in _CROSS_STREAMS else workload

    @property
    def groups(self) -> tuple[Spans, ...]:
        part = self.stream.of(self.workload)
        assert isinstance(part, Workload)
        return (
            part.groups
            if not self.stream.name
            else tuple(_present(spans, self.run_probability) for spans in part.groups)
        )


def stream_of(row: PlannedOperator | OperatorEstimate) -> Stream:
    """Stream of an operator: that of its block, unless its results belong to another one."""
    op = row.operator.first if isinstance(row.operator, Overlapped) else row.operator
    if isinstance(op, Attention) and isinstance(op.heads.mask, ShardedSequences):
        return batch_share(op.heads.mask.ranks)
    output_streams = (
        (feature.stream for t in op.outputs for feature, _ in t.rows.terms) if row.block.stream.name else ()
    )
    return next((stream for stream in output_streams if stream.name), row.block.stream)


def _present(spans: Spans, run_probability: Num) -> Spans:
    """Sequences of a stream, given that there are any; if tokens take part by chance, those with at least one token."""
    if not isinstance(spans, Thinned):
        return spans.times(1 / run_probability)
    any_token = 1 - (1 - spans.share) ** spans.q_len
    new = spans.share * spans.q_len / any_token
    return Spans(batch=spans.batch * any_token / run_probability, q_len=new, kv_len=new + spans.share * spans.past)
