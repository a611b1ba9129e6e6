"""The wheel and the sdist: what is in them, that a build can be repeated, and that what they declare is enough to run."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from helpers import save_many
from packaging.requirements import Requirement

import reshift

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "CHANGELOG.md", "CITATION.cff", "constraints.txt")
EPOCH = {"SOURCE_DATE_EPOCH": "1700000000"}


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SOURCE_DATE_EPOCH")}
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, env={**clean, **environment}
    )


def build(source: Path, out: Path, *options: str) -> list[Path]:
    done = run(sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", out, source, **EPOCH)
    assert done.returncode == 0, done.stderr + done.stdout
    return sorted(out.iterdir())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean copy: a build leaves files beside its sources."""
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, built from the sdist, and the sdist."""
    wheel, sdist = build(source, tmp_path_factory.mktemp("dist"))
    return wheel, sdist


def test_a_second_build_gives_the_same_wheel(built: tuple[Path, Path], source: Path, tmp_path: Path) -> None:
    """Also from the sources instead of the sdist, so nothing is missing from the sdist."""
    [again] = build(source, tmp_path, "--wheel")
    assert hashlib.sha256(again.read_bytes()).hexdigest() == hashlib.sha256(built[0].read_bytes()).hexdigest()


def test_descriptions_render(built: tuple[Path, Path]) -> None:
    done = run(sys.executable, "-m", "twine", "check", "--strict", *built)
    assert done.returncode == 0, done.stdout


def test_they_hold_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    package = ROOT / "src" / "reshift"
    wanted = {path.relative_to(ROOT / "src").as_posix() for path in package.rglob("*") if path.is_file()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    with zipfile.ZipFile(built[0]) as wheel:
        assert {name for name in wheel.namelist() if ".dist-info/" not in name} == wanted
    with tarfile.open(built[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames() if not sdist.getmember(name).isdir()}
    others = {name for name in names if not name.startswith(("src/reshift/", "src/reshift.egg-info/"))}
    assert others == {*SOURCES[1:], "PKG-INFO", "setup.cfg"}


def test_metadata(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        metadata = wheel.read(name).decode()
    assert f"\nVersion: {reshift.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nClassifier: Typing :: Typed\n" in metadata
    assert re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M) == [reshift.__version__]


def closure(wheel: Path) -> dict[str, Distribution]:
    """Every package that the wheel asks for without extras, and what those ask for, as installed here."""
    with zipfile.ZipFile(wheel) as file:
        [name] = [name for name in file.namelist() if name.endswith("/METADATA")]
        lines = re.findall(r"^Requires-Dist: (.+)$", file.read(name).decode(), re.M)
    left, found = [Requirement(line) for line in lines], dict[str, Distribution]()
    while left:
        wanted = left.pop()
        if wanted.name.lower() in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        here = found[wanted.name.lower()] = distribution(wanted.name)
        left += [Requirement(line) for line in here.requires or ()]
    return found


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel and links to exactly the packages it declares; a download would take minutes."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    done = run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", built[0])
    assert done.returncode == 0, done.stderr
    [packages] = folder.glob("lib/python*/site-packages")
    for package in closure(built[0]).values():
        roots = {Path(file).parts[0] for file in package.files or ()} - {"..", "__pycache__"}
        for root in roots:
            if not (packages / root).exists():
                (packages / root).symlink_to(Path(str(package.locate_file(root))))
    return folder


def test_the_installed_program_trains_and_scores(installed: Path, tmp_path: Path) -> None:
    program, images = installed / "bin" / "reshift", save_many(tmp_path / "in")
    options = ("--method", "brightness", "--set", "data.size=32")
    done = run(program, "train", "--data", images, "--out", tmp_path / "run", *options, RESHIFT_CACHE="off")
    assert done.returncode == 0, done.stderr
    done = run(program, "score", tmp_path / "run" / "bundle", images, "--out", tmp_path / "scores", "--labels")
    assert (done.returncode, len(list((tmp_path / "scores").rglob("*.png")))) == (0, 12), done.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [(("score", "B", "I", "--out", "O", "--dicom-out"), "dicom"), (("score", "B", "I", "--out", "O", "--engine", "ray"), "ray")],
)
def test_a_missing_extra_is_one_line_with_its_command(
    installed: Path, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path, command: tuple[str, ...], extra: str
) -> None:
    places = {"B": tiny_bundle, "I": folder_of_images, "O": tmp_path / "out"}
    done = run(installed / "bin" / "reshift", *(places.get(word, word) for word in command))
    assert (done.returncode, done.stderr.splitlines()[-1].count(f"pip install 'reshift[{extra}]'")) == (2, 1), done.stderr
    assert not (tmp_path / "out").exists()
