"""Every command that writes to a folder is refused while another process writes there."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dataset_trees import busi
from evaluations import folder as evaluation
from helpers import BRIGHTNESS, Cli, labelled, refused

HOLD = """
import sys
from pathlib import Path
from reshift.system.lock import output_folder
with output_folder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A folder that another process has locked."""
    out = tmp_path / "held"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield out
    process.communicate("\n")


COMMANDS = ("train", "resume", "score", "evaluate", "calibrate", "check", "prepare", "select", "demo", "compare", "figures")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_in_use_is_refused(
    run_cli: Cli, held: Path, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path, command: str
) -> None:
    out = ("--out", held)
    if command == "calibrate":
        shutil.copytree(tiny_bundle, held, dirs_exist_ok=True)
    if command in ("compare", "figures"):
        for name in ("dmd", "other"):
            evaluation(tmp_path, name)
    (tmp_path / "a.toml").write_text('method = "brightness"')
    args: dict[str, tuple[object, ...]] = {
        "train": ("train", "--data", folder_of_images, *out, *BRIGHTNESS),
        "resume": ("train", "--data", folder_of_images, *out, *BRIGHTNESS, "--resume"),
        "score": ("score", tiny_bundle, folder_of_images, *out),
        "evaluate": ("evaluate", tiny_bundle, "--data", labelled(tmp_path / "data"), *out),
        "calibrate": ("calibrate", held, "--data", folder_of_images),
        "check": ("check", folder_of_images, *out),
        "prepare": ("prepare", "busi", "--source", busi(tmp_path / "busi"), *out),
        "select": ("select", tmp_path / "a.toml", "--data", folder_of_images, *out),
        "demo": ("demo", *out),
        "compare": ("compare", tmp_path / "dmd", tmp_path / "other", *out),
        "figures": ("figures", tmp_path / "dmd", *out),
    }
    before = sorted(held.rglob("*"))
    done = run_cli(*args[command])
    last = done.err.splitlines()[-1]  # after the progress of what comes before writing
    refused(done._replace(err=f"{last}\n"), held, "process", "is writing there; wait until it ends, or choose another folder")
    assert sorted(held.rglob("*")) == before
