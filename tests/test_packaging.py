"""The package: every folder with code or data, one top-level name, and a public interface as documented."""

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import llmviewer

ROOT = Path(__file__).resolve().parent.parent


LEFT_OUT = (".git", ".venv", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info", "__pycache__")  # by .gitignore


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The folder of the sdist, and of the wheel that is built from it."""
    folder, source = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("source") / "llmviewer"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*LEFT_OUT))
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def wheel(built):
    return next(built.glob("*.whl"))


@pytest.mark.slow("builds the sdist and the wheel")
def test_the_sdist_has_every_file(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    git = subprocess.run(["git", "ls-files"], cwd=ROOT, check=False, capture_output=True, text=True)
    files = git.stdout.split() or ["CHANGELOG.md", "docs/models.md"]  # no checkout: an sdist unpacked
    assert set(files) <= packed


def test_every_folder_with_files_is_packaged():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    homes = {declared["package-dir"].get(name, name.replace(".", "/")) for name in declared["packages"]}
    code = {path.parent for top in ("llmviewer", "reports", "kernels", "webapp") for path in (ROOT / top).rglob("*.py")}
    assert homes == {str(path.relative_to(ROOT)) for path in code} | {
        "docs",
        "engines",
        "hardware",
        "models",
        "profiles",
    }


@pytest.mark.slow("builds the sdist and the wheel")
def test_the_wheel_holds_one_top_level_name_and_all_the_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name.startswith(f"llmviewer-{llmviewer.__version__}-")
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"llmviewer"}
    for kind in ("engines", "hardware", "models", "profiles"):
        shipped = {Path(name).name for name in names if name.startswith(f"llmviewer/data/{kind}/")}
        assert shipped - {"__init__.py"} == {path.name for path in (ROOT / kind).rglob("*") if path.is_file()}
    folder = "llmviewer/data/docs/"
    pages = {name.removeprefix(folder) for name in names if name.startswith(folder)}
    sources = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.md")]
    assert pages == {str(path.relative_to(ROOT / "docs")) for path in sources}
    templates = {Path(name).name for name in names if name.startswith("llmviewer/reports/templates/")}
    assert templates == {path.name for path in (ROOT / "reports" / "templates").iterdir()}
    assert "llmviewer/timelines/kernel_names.yaml" in names
    assert "llmviewer/webapp/assets/style.css" in names
    assert "llmviewer/py.typed" in names
    subprocess.run([sys.executable, "-m", "check_wheel_contents", str(wheel)], check=True, capture_output=True)


@pytest.mark.slow("builds the sdist and the wheel")
def test_the_installed_wheel_runs_outside_the_checkout(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    command = [sys.executable, "-P", "-m", "llmviewer", "analyze", "gpt2", "t4", "-o", "report.html"]
    environment = {"PYTHONPATH": str(tmp_path), "PATH": ""}
    subprocess.run(command, check=True, cwd=tmp_path, env=environment)
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_public_names_are_importable_and_listed():
    for name in llmviewer.__all__:
        assert getattr(llmviewer, name) is not None
    assert dir(llmviewer) == sorted(llmviewer.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = llmviewer.nothing


def test_versions_agree():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert declared["project"]["dynamic"] == ["version"]
    assert declared["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "llmviewer.__version__"}
    assert f"## {llmviewer.__version__}" in (ROOT / "CHANGELOG.md").read_text()
