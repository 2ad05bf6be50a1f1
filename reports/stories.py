"""The reports that are kept in reports/examples/: `python -m llmviewer.reports.stories` makes them again.

They are the two stories of "LLM Inference Unveiled" (arXiv:2402.16363): a novelist at a computer of one's own, for whom
one long text after another is written, and a small company whose staff ask questions about documents.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from llmviewer.choice import choose
from llmviewer.export import write_text

from .choice import REPORT

FOLDER: Final = Path(__file__).with_name("examples")
MODEL: Final = "llama-2-13b"
STORIES: Final = {"novel": (1, 512, 4096), "documents": (16, 3000, 200)}  # users, tokens of a prompt, of an answer


def make(folder: Path = FOLDER) -> None:
    """Markdown and CSV of each. Their HTML is `llmviewer choose ... -o DIR`: five megabytes of library are not kept."""
    for name, (users, prompt, gen) in STORIES.items():
        choice = choose(MODEL, users=users, prompt=prompt, gen=gen)
        write_text(folder / f"{name}.md", REPORT.markdown(choice))
        write_text(folder / f"{name}.csv", REPORT.csv(choice))


if __name__ == "__main__":
    make()
