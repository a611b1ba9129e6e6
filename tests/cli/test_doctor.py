"""``reshift doctor``, ``cache`` and ``completion``."""

import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from helpers import Cli, refused

from reshift import __version__
from reshift.cli.app import COMMANDS
from reshift.cli.completion import SHELLS
from reshift.system.determinism import determinism_table
from reshift.system.health import advise, requirements


def test_doctor_tells_versions_extras_and_the_cache(run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHIFT_CACHE", str(tmp_path))
    (tmp_path / "a.safetensors").write_bytes(bytes(2000))
    done = run_cli("doctor", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["reshift"], found["packages"]["torch"]) == (__version__, version("torch"))
    assert found["cache"] == {"folder": str(tmp_path), "bytes": {"stages": 2000}, "writable": True}
    assert found["extras"]["dicom"]["highdicom"] == version("highdicom")
    assert "dev" not in found["extras"]
    shown = run_cli("doctor").out
    assert f"torch {version('torch')}" in shown
    assert "stages 2 kB" in shown


def test_doctor_names_the_command_for_what_is_missing() -> None:
    found: dict[str, Any] = {
        "packages": {"torch": None, "numpy": "2"},
        "extras": {"dicom": {"highdicom": "1", "python-gdcm": None}, "report": {"matplotlib": "3"}},
        "device": {"gpus": []},
        "cache": {"folder": "/nowhere", "writable": False, "bytes": {"stages": 50 * 2**30}},
        "weights": {"efficientnet-lite0": None, "lpips": None},
    }
    commands = [advice.do for advice in advise(found)]
    assert commands[:3] == ["pip install reshift", "pip install 'reshift[features]'", "pip install 'reshift[dicom]'"]
    assert commands[-2:] == ["set RESHIFT_CACHE to another folder, or to off", "reshift cache prune"]
    assert not any("report" in command for command in commands)


def test_doctor_shows_what_is_equal_to_the_bit(run_cli: Cli) -> None:
    rows = json.loads(run_cli("doctor", "--determinism", "--json").out)
    assert rows == determinism_table()
    shown = run_cli("doctor", "--determinism")
    assert shown.code == 0
    assert "OMP_NUM_THREADS" in shown.out


def test_requirements_come_from_the_metadata() -> None:
    found = requirements()
    assert {"torch", "numpy", "pydicom"} <= set(found[""])
    assert "isal" not in found[""]  # only where there is a build for the processor
    assert "highdicom" in found["dicom"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Old and new files of every kind, a link, and a file that is not ours."""
    folder = tmp_path / "cache"
    old = time.time() - 40 * 86_400
    for name, aged in (("old.safetensors", True), ("new.safetensors", False), ("prepared/ab/cd", True), ("weights/net", True)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1500))
        if aged:
            os.utime(path, (old, old))
    (tmp_path / "precious").write_text("mine")
    os.utime(tmp_path / "precious", (old, old))
    (folder / "prepared" / "link").symlink_to(tmp_path / "precious")
    (folder / "notes.txt").write_text("mine")
    os.utime(folder / "notes.txt", (old, old))
    monkeypatch.setenv("RESHIFT_CACHE", str(folder))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def test_the_cache_is_listed(run_cli: Cli, cache: Path) -> None:
    found = json.loads(run_cli("cache", "list", "--json").out)
    assert {kind: (one["files"], one["bytes"]) for kind, one in found["kinds"].items()} == {
        "prepared": (1, 1500), "stages": (2, 3000), "weights": (1, 1500),
    }  # fmt: skip
    assert f"{cache}: 6 kB" in run_cli("cache", "list").out


def test_pruning_removes_what_is_old_and_can_be_made_again(run_cli: Cli, cache: Path) -> None:
    before = names(cache)
    assert "would remove 2 files, 3 kB" in run_cli("cache", "prune", "--dry-run").out
    assert names(cache) == before
    assert "removed 2 files, 3 kB" in run_cli("cache", "prune").out
    assert names(cache) == ["new.safetensors", "notes.txt", "prepared/link", "weights/net"]
    assert not (cache / "prepared" / "ab").exists()
    assert "removed 1 files" in run_cli("cache", "prune", "--older-than", "0d").out
    assert "removed 1 files" in run_cli("cache", "prune", "--kind", "weights").out
    assert names(cache) == ["notes.txt", "prepared/link"]
    assert (cache.parent / "precious").read_text() == "mine"


def test_mistakes_are_one_line(run_cli: Cli, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(run_cli("cache", "prune", "--older-than", "soon"), "soon", "30d")
    refused(run_cli("cache", "prune", "--kind", "stage"), "stage", "stages")
    refused(run_cli("completion", "cmd"), "cmd", "bash")
    monkeypatch.setenv("RESHIFT_CACHE", "off")
    refused(run_cli("cache", "list"), "RESHIFT_CACHE=off")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_a_script(run_cli: Cli, shell: str) -> None:
    assert "_RESHIFT_COMPLETE" in run_cli("completion", shell).out


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    program = tmp_path / "reshift"
    program.write_text(f"#!{sys.executable}\nfrom reshift.cli import main\nmain()\n")
    program.chmod(0o755)
    ask = '_reshift_completion reshift; echo "${COMPREPLY[@]}"'
    script = f'eval "$(reshift completion bash)"; COMP_WORDS=(reshift ""); COMP_CWORD=1; {ask}; '
    script += f"COMP_WORDS=(reshift score --ove); COMP_CWORD=2; {ask}"
    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=path, capture_output=True, text=True, check=True)
    commands, options = done.stdout.splitlines()
    assert {command.__name__ for group in COMMANDS.values() for command in group} <= set(commands.split())
    assert options == "--overlays"
