"""Tables of the documentation, which tests hold to what is worked out."""

from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def text(page):
    """What it says, its lines joined."""
    return " ".join((DOCS / page).read_text(encoding="utf-8").split())


def rows(page, header):
    """The cells of each row of the one table in `page` whose first line begins with `header`."""
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    (start,) = (place for place, line in enumerate(lines) if line.startswith(header))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def names(cell):
    """What stands in backticks."""
    return cell.split("`")[1::2]
