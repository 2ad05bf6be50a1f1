"""A GPU that computes nothing: what the host does for launches, and when they would be done."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import MagicMock


class Cuda:
    """A GPU whose launches take 50 us of the host's time, and as long on the GPU as they say."""

    Stream = current_stream = MagicMock
    stream = staticmethod(nullcontext)

    def __init__(self):
        self.host = self.gpu = 0.0  # when each is done [s]
        self.hangs = False
        self.capturing = None

    def launch(self, seconds):
        if self.capturing is not None:
            self.capturing.seconds += seconds
            return
        self.host += 50e-6
        self.gpu = max(self.gpu, self.host) + seconds

    def _sleep(self, cycles):
        self.launch(cycles / 2e9)

    def Event(self, **options):  # noqa: N802 - torch's name
        event = SimpleNamespace()

        def query():
            if not self.hangs:
                self.host = self.gpu = max(self.gpu, self.host)
            return not self.hangs

        event.query = query
        event.record = lambda: setattr(event, "at", max(self.gpu, self.host))
        event.elapsed_time = lambda end: 1e3 * (end.at - event.at)
        return event

    def CUDAGraph(self):  # noqa: N802
        graph = SimpleNamespace(seconds=0.0)
        graph.replay = lambda: self.launch(graph.seconds)
        return graph

    @contextmanager
    def graph(self, graph):
        self.capturing = graph
        yield
        self.capturing = None
