"""The documentation as a whole: files it names exist, sources are credited, the version is one."""

import re
from pathlib import Path

import yaml

import llmviewer
from llmviewer.webapp.words import GLOSSARY

from .documented import text

ROOT = Path(__file__).parents[1]


def test_concepts_name_files_that_are_there():
    named = re.findall(r"^\| \[.*`([\w/.]+\.py)` \|$", (ROOT / "docs/concepts.md").read_text(), re.MULTILINE)
    assert len(named) > 15
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_every_fitted_source_is_credited_with_its_licence():
    notice = (ROOT / "NOTICE").read_text()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    uncredited = set()
    for path in (ROOT / "profiles").glob("*.yaml"):
        for source in yaml.load(path.read_text().partition("\nentries:")[0], loader).get("sources", ()):
            for repository in re.findall(r"github\.com/[\w.-]+/[\w.-]+", source):
                licence = re.search(r"Apache-2\.0|MIT", source).group()
                if not re.search(rf"{re.escape(repository)} +{re.escape(licence)}", notice):
                    uncredited.add(source)
    assert uncredited == set()


def test_the_citation_has_the_version_of_the_package():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == llmviewer.__version__


def test_no_name_in_the_glossary_stands_for_two_terms():
    names = [name.strip() for term in GLOSSARY for name in (term.name, *filter(None, term.also.split(", ")))]
    assert len(names) == len(set(names)) > 150


def test_the_readme_counts_the_measurements_of_the_accuracy_tables():
    _, tables = text("accuracy.md").split("## By fit")
    rows = [int(count) for count in re.findall(r"\|[^|]*\| (\d+) \| (?:\d|3 or more) \|(?: [\d.-]+ \|){6}", tables)]
    counted = f"{round(sum(rows), -3):,} public kernel measurements, in {len(rows)} combinations"
    assert counted in " ".join((ROOT / "README.md").read_text().split())
