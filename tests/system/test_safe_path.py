"""A file in the current folder, such as numpy.py, must not be imported in place of the real module by any process of ours."""

import subprocess
import sys
from pathlib import Path

import pytest
from bench_suites import BRIGHTNESS, HEAD, write_suite
from helpers import noise, save

NAMES = ("multiprocessing", "numpy", "pydantic", "pydicom", "random", "reshift", "torch", "typer")
CLI = "from reshift.cli.app import main; main()"
POOL = """
from reshift.system.workers import WorkerPool
with WorkerPool(1) as pool:
    print(pool.submit(0, __import__, "numpy").exception())
    print(pool.submit(0, __import__, "reshift.data.read").exception())
"""
DECODER = """
from reshift.data.dicom.decode import decompress
print(decompress(b"no image", {"transfer_syntax_uid": "1.2.840.10008.1.2.4.50"}, float("inf")))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of files that must not be imported. They leave a note, and the import goes wrong."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in NAMES:
        note = tmp_path / f"{name}-was-imported"
        (folder / f"{name}.py").write_text(f"open({str(note)!r}, 'w').close()\nraise SystemExit(7)\n")
    return folder


def run(folder: Path, code: str, *args: object) -> str:
    """Run a script that lies elsewhere, as the console script does, with ``folder`` as the current folder."""
    script = folder.parent / "script.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script, *map(str, args)], cwd=folder, capture_output=True, text=True, check=False)
    assert not list(folder.parent.glob("*-was-imported"))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_worker_processes(folder: Path) -> None:
    text = "if __name__ == '__main__':\n" + "\n".join(f"    {line}" for line in POOL.splitlines())
    assert "was-imported" not in run(folder, text)


def test_the_decoder(folder: Path) -> None:
    assert run(folder, DECODER) == "None\n"


def test_the_workers_of_a_benchmark(folder: Path, tmp_path: Path) -> None:
    suite, out = write_suite(tmp_path, HEAD, BRIGHTNESS), tmp_path / "out"
    run(folder, CLI, "bench", suite, "--out", out, "--device", "cpu")
    assert len(list((out / "cells").glob("*.json"))) == 1


def test_python_m_reshift(folder: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    """Python itself looks for ``reshift`` in the current folder first, so a reshift.py there needs ``python -P -m``."""
    (folder / "reshift.py").unlink()
    image = save(noise(), tmp_path / "a.png")
    args = ["-m", "reshift", "score", tiny_bundle, image, "--out", tmp_path / "out"]
    done = subprocess.run([sys.executable, *map(str, args)], cwd=folder, capture_output=True, text=True, check=False)
    assert not list(tmp_path.glob("*-was-imported"))
    assert done.returncode == 0, done.stderr


def test_a_method_in_the_current_folder_is_imported_when_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from reshift.methods.trivial import Brightness\nclass Mine(Brightness): pass\n")
    (tmp_path / "images").mkdir()
    for i in range(8):
        save(noise(i), tmp_path / "images" / f"{i}.png")
    settings = ("--set", "data.size=32", "--set", "calibrate.features=off", "--set", "train.device=cpu")
    args = ["-m", "reshift", "train", "--data", "images", "--out", "run", "--method", "mine:Mine", *settings]
    done = subprocess.run([sys.executable, *args], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
