"""The reports in reports/examples/, which `python -m llmviewer.reports.examples` remakes.

Both settings are from "LLM Inference Unveiled" (arXiv:2402.16363): a novelist at a personal computer, for whom one long
text after another is generated, and a small company whose staff ask questions about documents.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from llmviewer.comparing.choice import Choice, choose
from llmviewer.writing import write_text

from .choice import REPORT

FOLDER: Final = Path(__file__).with_name("examples")
MODEL: Final = "llama-2-13b"
EXAMPLES: Final = {"novel": (1, 512, 4096), "documents": (16, 3000, 200)}  # users, prompt tokens, generated tokens


def example(name: str) -> Choice:
    """Ranks every device for the workload of an example."""
    users, prompt, gen = EXAMPLES[name]
    return choose(MODEL, users=users, prompt=prompt, gen=gen)


def write(name: str, choice: Choice, folder: Path = FOLDER) -> None:
    """Writes Markdown and CSV. `llmviewer choose ... -o DIR` writes the HTML too, with five megabytes of plotly.js."""
    write_text(folder / f"{name}.md", REPORT.markdown(choice))
    write_text(folder / f"{name}.csv", REPORT.csv(choice))


if __name__ == "__main__":
    for each in EXAMPLES:
        write(each, example(each))
