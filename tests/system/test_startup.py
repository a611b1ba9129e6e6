"""Start-up time is mostly imports, so these tests check which modules a command imports."""

import subprocess
import sys
from pathlib import Path

import pytest
from helpers import noise, save

HEAVY = {"torch", "numpy", "PIL", "pydantic", "safetensors", "nibabel", "pydicom"}


def imported(*args: str) -> set[str]:
    """Run a command in its own process; return the names of all modules that it has imported."""
    code = (
        "import sys\n"
        "from reshift.cli.app import main\n"
        f"sys.argv = ['reshift', *{list(args)!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "finally:\n    print('MODULES', *sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_help_imports_typer_and_nothing_heavy() -> None:
    modules = imported("--help")
    assert "typer" in modules
    assert not HEAVY & modules


@pytest.mark.parametrize("command", ["--version", "datasets", "methods"])
def test_commands_without_images_import_no_numpy(command: str) -> None:
    assert not (HEAVY - {"pydantic"}) & imported(command)  # newer versions of typer import pydantic


def test_scoring_an_image_imports_no_training_code_and_no_other_reader(tiny_bundle: Path, tmp_path: Path) -> None:
    image = save(noise(), tmp_path / "a.png")
    modules = imported("score", str(tiny_bundle), str(image), "--out", str(tmp_path / "out"))
    assert {"torch", "reshift.inference.score"} <= modules
    ours = {
        "reshift.training.loop",
        "reshift.training.run",
        "reshift.evaluation.evaluate",
        "reshift.training.step",
        "reshift.inference.dicom_export",
        "reshift.bench",
    }
    others = {"nibabel", "pydicom", "highdicom", "huggingface_hub", "matplotlib", "sklearn", "scipy", "ray", "pandas"}
    compilers = {"torch._dynamo", "torch._inductor", "torch.onnx", "triton", "sympy"}
    assert not (ours | others | compilers) & modules


def test_garbage_collection_is_on_again_after_the_imports() -> None:
    code = (
        "import gc, sys\n"
        "from reshift.system.imports import heavy_imports\n"
        "with heavy_imports():\n    assert not gc.isenabled()\n    sys.modules['torch'] = sys\n"
        "assert gc.isenabled() and gc.get_freeze_count() > 0\n"
        "frozen = gc.get_freeze_count()\n"
        "with heavy_imports():\n    assert gc.isenabled()\n"  # torch is imported already
        "assert gc.get_freeze_count() <= frozen\n"
        "with __import__('contextlib').suppress(ImportError), heavy_imports():\n"
        "    del sys.modules['torch']\n    raise ImportError\n"
        "assert gc.isenabled()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
