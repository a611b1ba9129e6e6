"""``--runtime``: what predicts on a CPU, when a bundle is converted, and what a folder of results remembers."""

import errno
import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Cli, Outcome, noise, read_records, refused, save

from reshift.cli import runtime
from reshift.errors import UserError
from reshift.inference.bundle import build, load_bundle, save_bundle
from reshift.inference.model import load_model
from reshift.training.run import resolve

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="needs the extra export")
CONVERTING, BY_ONNX = "converting the bundle", "CPU: ONNX Runtime"


@pytest.fixture(scope="module")
def converted(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the conversion of ``tiny_bundle``; copy it."""
    from reshift.export.cached import make_conversion

    folder = tmp_path_factory.mktemp("converted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESHIFT_CACHE", str(folder))
        make_conversion(tiny_bundle, load_bundle(tiny_bundle))
    return folder


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for conversions. Tests run on one thread and with a method that learns nothing: both count as worth it here."""
    monkeypatch.setenv("RESHIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runtime, "FASTER", {"brightness"})
    monkeypatch.setattr(runtime, "MIN_THREADS", 1)
    return tmp_path / "cache"


@pytest.fixture
def full_cache(converted: Path, empty_cache: Path) -> Path:
    return Path(shutil.copytree(converted, empty_cache))


def made_by(out: Path) -> Any:
    return json.loads((out / "scored-by.json").read_text())["runtime"]


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Take the package away, as far as anybody asks whether it is installed."""
    for module in ("reshift.inference.exported.load", "reshift.cli.runtime"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None if name == package else object())


def test_a_bundle_is_converted_once_and_scores_like_torch(
    run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, empty_cache: Path, tmp_path: Path
) -> None:
    def score(name: str, wish: str) -> Outcome:
        done = run_cli("score", tiny_bundle, folder_of_images, "--out", tmp_path / name, "--runtime", wish)
        assert done.code == 0, done.err
        return done

    assert CONVERTING in score("first", "onnx").err
    again = score("again", "onnx").err
    assert BY_ONNX in again
    assert CONVERTING not in again
    assert BY_ONNX not in score("torch", "torch").err
    first, second, plain = (read_records(tmp_path / name) for name in ("first", "again", "torch"))
    assert first == second
    assert [(r["p_value"], r["flag"]) for r in first] == [(r["p_value"], r["flag"]) for r in plain]
    np.testing.assert_allclose([r["score"] for r in first], [r["score"] for r in plain], rtol=1e-6)
    assert [made_by(tmp_path / name) for name in ("first", "again", "torch")] == ["onnxruntime", "onnxruntime", "torch"]
    assert len([path for path in (empty_cache / "converted").iterdir() if path.is_dir()]) == 1


def test_auto_converts_for_many_images_and_takes_what_is_there(
    run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(name: str) -> str:
        done = run_cli("score", tiny_bundle, folder_of_images, "--out", tmp_path / name)
        assert done.code == 0, done.err
        return done.err

    monkeypatch.setattr(runtime, "MIN_IMAGES", 13)
    assert "CPU:" not in score("few")
    assert (made_by(tmp_path / "few"), empty_cache.exists()) == ("torch", False)
    monkeypatch.setattr(runtime, "MIN_IMAGES", 12)
    assert CONVERTING in score("many")
    monkeypatch.setattr(runtime, "MIN_IMAGES", 13)
    assert BY_ONNX in score("few, converted")
    assert [made_by(tmp_path / name) for name in ("many", "few, converted")] == ["onnxruntime", "onnxruntime"]
    assert "CPU:" not in score("few"), "nothing was left to score"


@pytest.mark.parametrize("why", ["method", "threads", "cache", "package", "calibration"])
def test_auto_is_torch_without_a_word(
    why: str, run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, full_cache: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(runtime, "MIN_IMAGES", 1)
    bundle, out = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle")), tmp_path / "out"
    if why == "method":
        monkeypatch.setattr(runtime, "FASTER", {"reshift"})
    elif why == "threads":
        monkeypatch.setattr(runtime, "MIN_THREADS", torch.get_num_threads() + 1)
    elif why == "cache":
        monkeypatch.setenv("RESHIFT_CACHE", "off")
    elif why == "package":
        without(monkeypatch, "onnxscript")
    else:
        (bundle / "calibration.json").unlink()
    done = run_cli("score", bundle, folder_of_images, "--out", out)
    assert (done.code, made_by(out)) == (0, "torch")
    assert "ONNX" not in done.err
    assert len(list((full_cache / "converted").iterdir())) == 2, "a conversion and the lock, as before"


def test_a_folder_keeps_its_runtime_and_says_when_it_changes(
    run_cli: Cli, tiny_bundle: Path, full_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "MIN_IMAGES", 1_000)
    monkeypatch.setattr(runtime, "FASTER", set[str]())
    images, out = tmp_path / "in", tmp_path / "out"

    def score_one_more(*options: str) -> str:
        save(noise(len(list(images.glob("*.png")))), images / f"{len(list(images.glob('*.png')))}.png")
        done = run_cli("score", tiny_bundle, images, "--out", out, *options)
        assert done.code == 0, done.err
        assert len(read_records(out)) == len(list(images.iterdir()))
        return done.err

    assert BY_ONNX in score_one_more("--runtime", "onnx")
    assert "earlier scores" not in (kept := score_one_more())
    assert BY_ONNX in kept
    shutil.rmtree(full_cache)
    assert CONVERTING in score_one_more(), "a folder that began by ONNX Runtime goes on by it"
    assert "earlier scores are by onnxruntime, new ones by torch" in score_one_more("--runtime", "torch")
    without(monkeypatch, "onnxscript")
    assert "earlier scores are by onnxruntime, new ones by torch" in score_one_more()
    assert made_by(out) == "onnxruntime"


def test_a_folder_that_torch_began_stays_with_torch(
    run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, full_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "MIN_IMAGES", 1)
    out, more = tmp_path / "out", save(noise(99), tmp_path / "more.png")
    assert full_cache.exists()
    assert run_cli("score", tiny_bundle, folder_of_images, "--out", out, "--runtime", "torch").code == 0
    assert "CPU:" not in run_cli("score", tiny_bundle, folder_of_images, more, "--out", out).err
    stamp = json.loads((out / "scored-by.json").read_text())
    assert stamp.pop("runtime") == "torch"
    (out / "scored-by.json").write_text(json.dumps(stamp))  # as an earlier version wrote it
    more = save(noise(98), tmp_path / "another.png")
    assert "CPU:" not in run_cli("score", tiny_bundle, folder_of_images, more, "--out", out).err
    changed = run_cli("score", tiny_bundle, save(noise(97), tmp_path / "last.png"), "--out", out, "--runtime", "onnx")
    assert "earlier scores are by torch, new ones by onnxruntime" in changed.err


def test_what_cannot_be_is_refused_in_one_line_and_leaves_nothing(
    run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def score(bundle: Path, wish: str, *options: str) -> Outcome:
        return run_cli("score", bundle, folder_of_images, "--out", out, "--runtime", wish, *options)

    refused(score(tiny_bundle, "onxx"), "'onxx'", "auto, torch or onnx")
    refused(score(tiny_bundle, "onnx", "--engine", "ray"), "--engine local")
    bare = Path(shutil.copytree(tiny_bundle, tmp_path / "bare"))
    (bare / "calibration.json").unlink()
    refused(score(bare, "onnx"), bare, "reshift calibrate")
    chain = resolve(
        "ddpm", "paper", [{"data": {"size": 32}, "model": {"epochs": 1, "widths": [8, 8], "timesteps": 12, "t_star": 4}}]
    )
    known = load_bundle(tiny_bundle).calibration
    assert known is not None
    save_bundle(tmp_path / "chain", build(chain), chain, known, {})
    refused(score(tmp_path / "chain", "onnx"), "'ddpm' cannot be exported")
    with monkeypatch.context() as patch:
        without(patch, "onnxscript")
        refused(score(tiny_bundle, "onnx"), "onnxscript is not installed", "pip install 'reshift[export]'")
    with monkeypatch.context() as patch:
        patch.setenv("RESHIFT_CACHE", "off")
        refused(score(tiny_bundle, "onnx"), "RESHIFT_CACHE=off")
        address = ("--dicomweb", "http://127.0.0.1:9/dicom-web", "--out", out)
        refused(run_cli("pacs", "score", tiny_bundle, *address, "--runtime", "onnx"), "RESHIFT_CACHE=off")
        refused(run_cli("pacs", "score", tiny_bundle, *address, "--runtime", "onxx"), "'onxx'")
    assert not out.exists()
    assert not empty_cache.exists()


def test_an_archive_that_cannot_be_asked_is_refused_before_a_conversion(
    run_cli: Cli, tiny_bundle: Path, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "highdicom" else find_spec(name))
    address = ("--dicomweb", "http://127.0.0.1:9/dicom-web", "--out", tmp_path / "out")
    refused(run_cli("pacs", "score", tiny_bundle, *address), "pip install 'reshift[pacs]'")
    assert not empty_cache.exists()


def test_an_exported_model_keeps_its_own_runtime(
    run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, full_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "MIN_IMAGES", 1)
    exported, out = tmp_path / "exported", tmp_path / "out"
    assert run_cli("export", tiny_bundle, "--to", "torch", "--out", exported).code == 0
    for wish in ("onnx", "torch"):
        refused(run_cli("score", exported, folder_of_images, "--out", out, "--runtime", wish), exported, "leave --runtime out")
    done = run_cli("score", exported, folder_of_images, "--out", out)
    assert (done.code, "CPU:" in done.err, made_by(out)) == (0, False, "torch")
    assert full_cache.exists()


def test_on_a_gpu_nothing_is_converted(tiny_bundle: Path, full_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(tiny_bundle, "cpu")
    assert runtime.on_runtime(model, tiny_bundle, "auto").runtime == "onnxruntime"
    assert full_cache.exists()
    model.device = torch.device("cuda")  # as if there were one
    assert runtime.on_runtime(model, tiny_bundle, "auto") is model
    with pytest.raises(UserError, match="add --device cpu"):
        runtime.on_runtime(model, tiny_bundle, "onnx")
    with pytest.raises(UserError, match="add --device cpu"):
        runtime.chooser(model, tiny_bundle, "onnx")
    model.device = torch.device("cpu")
    monkeypatch.setenv("RESHIFT_AMP", "bf16")
    monkeypatch.setattr(type(model.detector), "bf16_cpu", True)
    with pytest.raises(UserError, match="RESHIFT_AMP=bf16: ONNX Runtime predicts in float32"):
        runtime.chooser(model, tiny_bundle, "onnx")


def test_where_a_conversion_fails_auto_goes_on_by_torch(
    run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("reshift.export.folder.write_model", full_disk)
    monkeypatch.setattr(runtime, "MIN_IMAGES", 12)
    done = run_cli("score", tiny_bundle, folder_of_images, "--out", tmp_path / "auto")
    assert done.code == 0
    assert "so torch predicts" in done.err
    assert "No space left on device" in done.err
    assert (made_by(tmp_path / "auto"), len(read_records(tmp_path / "auto"))) == ("torch", 12)
    done = run_cli("score", tiny_bundle, folder_of_images, "--out", tmp_path / "forced", "--runtime", "onnx")
    assert done.code == 2
    assert "No space left on device" in done.err.splitlines()[-1]
    assert "use --runtime torch" in done.err.splitlines()[-1]
    assert [path.name for path in (empty_cache / "converted").iterdir()] == [".lock"]
