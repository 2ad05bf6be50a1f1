"""A graph from any torch module, without its weights: for models that no built-in architecture describes.

The module runs on the meta device for a few shapes (sequences, new and cached tokens), and its aten calls are recorded.
The recordings are aligned, and every count is fitted exactly by the features of a workload; a call that does not fit is
an error. Matmul-like calls become operators of their own, and the element-wise ones between them are fused. In reading
order:

loading    finds the module that a user names          tracer     the whole way from a module to a Model
passes     how a module is called                      recorder   calls of one pass -> recording, numbers
fitting    counts over shapes -> features              alignment  recordings must make the same calls
caches     keys, values and states                     program    aligned calls with fitted counts
checks     passes that had no part in the fit          scans      prompts of models with a state
segments   calls -> launches of layers                 naming     names of launches and tensors
builder    launches -> operators and blocks            attention  products with a softmax between them
"""

from __future__ import annotations

from .loading import load_traced
from .tracer import trace

__all__ = ["load_traced", "trace"]
