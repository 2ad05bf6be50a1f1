"""The reports that are kept in reports/examples/: `python -m llmviewer.reports.stories` makes them again.

They are the two stories of "LLM Inference Unveiled" (arXiv:2402.16363): a novelist at a computer of one's own, for whom
one long text after another is written, and a small company whose staff ask questions about documents.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from llmviewer.comparing.choice import Choice, choose
from llmviewer.writing import write_text

from .choice import REPORT

FOLDER: Final = Path(__file__).with_name("examples")
MODEL: Final = "llama-2-13b"
STORIES: Final = {"novel": (1, 512, 4096), "documents": (16, 3000, 200)}  # users, tokens of a prompt, of an answer


def told(name: str) -> Choice:
    """What the story of a name is about: every device for its use."""
    users, prompt, gen = STORIES[name]
    return choose(MODEL, users=users, prompt=prompt, gen=gen)


def write(name: str, choice: Choice, folder: Path = FOLDER) -> None:
    """Its Markdown and CSV. The HTML is `llmviewer choose ... -o DIR`: five megabytes of library are not kept."""
    write_text(folder / f"{name}.md", REPORT.markdown(choice))
    write_text(folder / f"{name}.csv", REPORT.csv(choice))


if __name__ == "__main__":
    for story in STORIES:
        write(story, told(story))
