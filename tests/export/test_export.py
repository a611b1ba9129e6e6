"""``reshift export``: a folder that scores like the bundle, in any process; or one line and nothing."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Cli, refused, save_many

from reshift.inference.bundle import build, load_bundle, save_bundle
from reshift.methods import METHODS
from reshift.training.run import resolve

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="needs the extra export")
SITE = Path(np.__file__).parents[1]
ISOLATED = ("numpy", "numpy.libs", "PIL", "pillow.libs", "onnxruntime")  # all that run.py may need


@pytest.fixture(scope="module")
def exported(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    from reshift.export.folder import export

    out = tmp_path_factory.mktemp("exports") / "onnx"
    export(tiny_bundle, "onnx", out)
    return out


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()]


def numbers(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["score"], record["p_value"], record["flag"]


def test_an_exported_folder_scores_like_its_bundle(
    run_cli: Cli, tiny_bundle: Path, exported: Path, folder_of_images: Path, tmp_path: Path
) -> None:
    for name, model in (("bundle", tiny_bundle), ("export", exported)):
        assert run_cli("score", model, folder_of_images, "--out", tmp_path / name).code == 0
    mine, theirs = records(tmp_path / "export"), records(tmp_path / "bundle")
    assert [numbers(record)[1:] for record in mine] == [numbers(record)[1:] for record in theirs]
    np.testing.assert_allclose([r["score"] for r in mine], [r["score"] for r in theirs], rtol=1e-6)
    first, second = (np.load(tmp_path / name / mine[0]["map"]) for name in ("bundle", "export"))
    np.testing.assert_allclose(first, second, atol=1e-5)
    refused(run_cli("score", exported, folder_of_images, "--out", tmp_path / "gpu", "--device", "cuda"), "runs on the CPU")


def test_the_script_needs_neither_torch_nor_reshift(exported: Path, folder_of_images: Path, run_cli: Cli, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for name in ISOLATED:
        if (SITE / name).exists():
            (site / name).symlink_to(SITE / name)
    environment = {"PYTHONPATH": str(site), "PATH": os.environ["PATH"]}

    def python(*args: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", *(str(arg) for arg in args)]  # -S: without the packages of this environment
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)

    assert "No module named 'torch'" in python("-c", "import numpy, PIL, onnxruntime, torch").stderr
    (tmp_path / "scan.dcm").write_bytes(b"no image")
    done = python(exported / "run.py", folder_of_images, tmp_path / "scan.dcm")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (3, "")
    assert set(found[0]) == {"input", "score", "p_value", "flag"}
    assert found[-1]["score"] is None
    assert "scan.dcm" in found[-1]["error"]
    assert run_cli("score", exported, folder_of_images, "--out", tmp_path / "scores").code == 0
    assert [numbers(one) for one in found[:-1]] == [numbers(record) for record in records(tmp_path / "scores")]
    changed = Path(shutil.copytree(exported, tmp_path / "changed"))
    (changed / "prepare.json").write_text((changed / "prepare.json").read_text().replace("32", "64", 1))
    done = python(changed / "run.py", folder_of_images)
    assert (done.stdout, done.returncode) == ("", 1)
    assert "prepare.json: not the file that was exported" in done.stderr


def test_what_the_folder_says(exported: Path) -> None:
    about, settings = (json.loads((exported / name).read_text()) for name in ("export.json", "prepare.json"))
    assert (about["to"], about["precision"], about["model"]) == ("onnx", "float32", "model.onnx")
    assert "opset 18" in about["what"]
    assert about["input"] == {"image": ["N", 1, 32, 32]}
    assert about["parity"]["largest_score_difference"] <= about["parity"]["score_tolerance"]
    assert about["parity"]["images"] == 18
    assert (settings["size"], settings["scale"], settings["square"]) == (32, "auto", "crop")
    import onnx

    graph = onnx.load(exported / "model.onnx").graph
    shapes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.output)}
    assert shapes == {"image": ["N", 1, 32, 32], "score": ["N"], "heatmap": ["N", 32, 32]}


@pytest.mark.parametrize("name", ["model.onnx", "prepare.json", "calibration.json", "export.json", "run.py", "checksums.json"])
def test_an_edited_file_is_refused(name: str, exported: Path, folder_of_images: Path, run_cli: Cli, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "edited"))
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    refused(run_cli("score", folder, folder_of_images, "--out", tmp_path / "out"), folder)
    (folder / name).unlink()
    if name != "export.json":  # without it, the folder is taken for a bundle that is not complete
        refused(run_cli("score", folder, folder_of_images, "--out", tmp_path / "out"), folder, name)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported_leaves_nothing(
    run_cli: Cli, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    refused(run_cli("export", tiny_bundle, "--to", "tensorrt", "--out", out), "onnx, openvino, torch, monai")
    bare = Path(shutil.copytree(tiny_bundle, tmp_path / "bare"))
    (bare / "calibration.json").unlink()
    refused(run_cli("export", bare, "--to", "torch", "--out", out), "reshift calibrate")
    refused(run_cli("export", tiny_bundle, "--to", "torch", "--out", bare), "exists already")
    refused(run_cli("export", tmp_path / "gone", "--to", "torch", "--out", out), "gone")
    with monkeypatch.context() as patch:
        patch.setattr("reshift.inference.exported.load.find_spec", lambda name: None if name == "onnxscript" else object())
        refused(run_cli("export", tiny_bundle, "--to", "onnx", "--out", out), "onnxscript", "pip install 'reshift[export]'")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full_disk)
        refused(run_cli("export", tiny_bundle, "--to", "torch", "--out", out), "No space left on device", "make room")
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.mkdtemp", full_disk)
        refused(run_cli("export", tiny_bundle, "--to", "torch", "--out", out), out, "No space left on device", "make room")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare"]


def full_disk(*_args: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_export_that_scores_otherwise_is_refused_with_a_table(
    run_cli: Cli, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reshift.inference.exported.load import load_runner

    def wrong(path: Path) -> Any:
        run = load_runner(path)
        return lambda x: [run(x)[0] + (0.5 if x[0, 0, 0, 0] < -0.9 else 0.0), run(x)[1]]

    monkeypatch.setattr("reshift.export.folder.load_runner", wrong)
    done = run_cli("export", tiny_bundle, "--to", "torch", "--out", tmp_path / "out", "--data", save_many(tmp_path / "normals"))
    assert done.code == 0, "noise has no dark corner, so these images agree"
    done = run_cli("export", tiny_bundle, "--to", "torch", "--out", tmp_path / "other")
    assert done.code == 2
    lines = [line for line in done.err.splitlines() if "comparing" not in line]
    assert lines[0].split() == ["image", "bundle", "exported", "difference", "map", "flags"]
    assert "phantom" in lines[1]
    assert "no/yes" in lines[1]
    assert "differs on" in lines[-1]
    assert "is not kept" in lines[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["normals", "out"]


def test_methods_say_whether_they_can_be_exported(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    listed = json.loads(run_cli("methods", "--json").out)
    assert all(listed[name]["export"] for name in ("reshift", "dmd", "patchcore", "dae", "ae", "vae"))
    assert {name for name, about in listed.items() if not about["export"]} == {
        n for n, entry in METHODS.items() if entry.no_export
    }
    assert "copies" in listed["ddpm"]["no_export"]
    tiny = {"epochs": 1, "widths": [8, 8], "timesteps": 12, "t_star": 4}
    config = resolve("ddpm", "paper", [{"data": {"size": 32}, "model": tiny}])
    known = load_bundle(tiny_bundle).calibration
    assert known is not None
    save_bundle(tmp_path / "bundle", build(config), config, known, {})
    line = refused(run_cli("export", tmp_path / "bundle", "--to", "onnx", "--out", tmp_path / "out"), "'ddpm'")
    assert str(listed["ddpm"]["no_export"]) in line
    assert not (tmp_path / "out").exists()
