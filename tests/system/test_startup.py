"""What a command imports before it does anything: start-up is nearly all imports, so the modules are watched, never seconds."""

import subprocess
import sys
from pathlib import Path

import pytest
from helpers import noise, save

HEAVY = {"torch", "numpy", "PIL", "pydantic", "safetensors", "nibabel", "pydicom"}


def imported(*args: str) -> set[str]:
    """Run a command in a process of its own, and return the names of all modules it had imported in the end."""
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


def test_help_waits_for_no_library_but_its_own() -> None:
    modules = imported("--help")
    assert "typer" in modules
    assert not HEAVY & modules


@pytest.mark.parametrize("command", ["--version", "datasets", "methods"])
def test_what_needs_no_image_needs_no_numpy(command: str) -> None:
    assert not (HEAVY - {"pydantic"}) & imported(command)  # newer typers take pydantic to read options


def test_scoring_a_picture_imports_no_training_code_and_no_other_reader(tiny_bundle: Path, tmp_path: Path) -> None:
    picture = save(noise(), tmp_path / "a.png")
    modules = imported("score", str(tiny_bundle), str(picture), "--out", str(tmp_path / "out"))
    assert {"torch", "reshift.inference.score"} <= modules
    ours = {
        "reshift.training.loop",
        "reshift.training.run",
        "reshift.evaluation.evaluate",
        "reshift.training.step",
        "reshift.inference.dicom_export",
        "reshift.bench",
    }
    others = {"nibabel", "pydicom", "highdicom", "efficientnet_lite_pytorch", "matplotlib", "sklearn", "scipy", "ray", "pandas"}
    compilers = {"torch._dynamo", "torch._inductor", "torch.onnx", "triton", "sympy"}
    assert not (ours | others | compilers) & modules


def test_garbage_is_looked_for_again_when_the_imports_are_done() -> None:
    code = (
        "import gc, sys\n"
        "from reshift.system.imports import heavy_imports\n"
        "with heavy_imports():\n    assert not gc.isenabled()\n    sys.modules['torch'] = sys\n"
        "assert gc.isenabled() and gc.get_freeze_count() > 0\n"
        "frozen = gc.get_freeze_count()\n"
        "with heavy_imports():\n    assert gc.isenabled()\n"  # the second time there is nothing to import
        "assert gc.get_freeze_count() <= frozen\n"
        "with __import__('contextlib').suppress(ImportError), heavy_imports():\n"
        "    del sys.modules['torch']\n    raise ImportError\n"
        "assert gc.isenabled()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
