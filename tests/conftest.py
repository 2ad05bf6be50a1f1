"""Settings of the whole suite."""

import os
import sys
from pathlib import Path

from hypothesis import settings

# `python -m pytest` looks for packages in the checkout first, where transformers takes our kernels/ for a package of
# that name which it knows. Ours are imported as llmviewer.kernels.
_ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != _ROOT]

os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported: kernels run where there is no GPU

settings.register_profile("suite", deadline=None, derandomize=True, max_examples=60)  # the same cases on every machine
settings.load_profile("suite")
