"""What every method must do, whatever it is: train, predict purely, come back from disk the same, refuse what it cannot take."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Cli, refused
from safetensors.torch import load_file

from reshift.data.phantom import write_phantom
from reshift.inference.model import Model, load_model
from reshift.methods import METHODS
from reshift.training.run import resolve, train_run

DIFFUSION = {"epochs": 1, "widths": [8, 8], "timesteps": 12, "t_star": 6}
DMD: dict[str, Any] = {
    "stage1_epochs": 1, "stage2_epochs": 1, "widths": [8, 16], "d_z": 8, "codes": 16, "unet_widths": [16, 32],
    "classifier_widths": [8, 8, 8], "classifier_hidden": 8,
}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    "reshift": {"steps": 2, "members": 2, "widths": [8, 8, 8, 8], "bank": 64, "sample": 2000, "dmd": DMD},
    "dmd": DMD,
    "ae": {"epochs": 1, "width": 4, "hidden": 16},
    "vae": {"epochs": 1, "width": 4, "hidden": 16},
    "fanogan": {"gan_epochs": 1, "encoder_epochs": 1, "width": 4, "latent": 8, "n_critic": 2},
    "dae": {"epochs": 1, "widths": [8, 8], "noise_grid": 4},
    "ddpm": DIFFUSION,
    "anoddpm": DIFFUSION,
    "autoddpm": DIFFUSION | {"repaint_from": 3, "resamplings": 2},
    "thor-gaussian": DIFFUSION | {"harmonise_at": [4, 2]},
    "thor-simplex": DIFFUSION | {"harmonise_at": [4, 2]},
    "diffuse": DIFFUSION | {"stride": 2},
    "cddpm": {
        "pretraining_epochs": 1, "denoiser_epochs": 1, "encoder_depths": [1, 1], "encoder_widths": [4, 8], "decoder_width": 16,
        "unet_widths": [8, 16], "unet_blocks": 1, "timesteps": 12, "t_star": [3, 6],
    },
    "madad": {
        "autoencoder_epochs": 1, "autoencoder_width": 8, "autoencoder_blocks": 1, "denoiser_epochs": 1, "widths": [8, 8],
        "blocks": 1, "factor": 4,
    },
    "patchcore": {"bank": 64, "sample": 2000},
    "brightness": {},
    "area": {},
}  # fmt: skip
FEATURES = {"autoddpm", "thor-gaussian", "thor-simplex", "diffuse", "patchcore"}  # need the extra


def test_every_method_is_listed_here() -> None:
    assert set(TINY) == set(METHODS)


@pytest.fixture(scope="module")
def phantom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen healthy images, twelve of them to learn from: two steps of six."""
    return write_phantom(tmp_path_factory.mktemp("phantom"), train=16, test_normal=3, test_abnormal=3, size=32)


@pytest.fixture(scope="module")
def images(phantom: Path) -> list[Path]:
    return sorted((phantom.parent / "images").iterdir())[:4]


def trained(method: str, phantom: Path, out: Path, seed: int = 0, **data: Any) -> Path:
    layer = {"seed": seed, "data": {"size": 32, "holdout": 0.25, **data}, "train": {"batch": 6}, "model": TINY[method]}
    layer["calibrate"] = {"features": "off", "training_sample": 2}
    return train_run(resolve(method, "paper", [layer]), phantom, out)


def run(model: Model, images: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    found = model.predict(list(images))
    return np.array([r.score for r in found]), np.stack([r.heatmap for r in found])


@pytest.mark.parametrize("method", METHODS)
def test_trains_and_predicts_the_same_alone_in_a_batch_and_from_disk(
    method: str, phantom: Path, images: list[Path], tmp_path: Path
) -> None:
    bundle = trained(method, phantom, tmp_path / "a")
    model = load_model(bundle, "cpu")
    scores, maps = run(model, images)
    assert np.isfinite(scores).all()
    assert np.isfinite(maps).all()
    assert maps.shape == (4, 32, 32)
    for i, image in enumerate(images):
        score, heatmap = run(model, [image])
        assert score[0] == scores[i]
        assert np.array_equal(heatmap[0], maps[i])
    turned = run(model, images[::-1])
    assert np.array_equal(turned[0], scores[::-1])
    assert np.array_equal(turned[1], maps[::-1])
    again = load_model(trained(method, phantom, tmp_path / "b"), "cpu")
    assert np.array_equal(run(again, images)[1], maps)
    first, second = (load_file(tmp_path / name / "bundle" / "model.safetensors") for name in "ab")
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in {"brightness", "area", "patchcore"}])
def test_another_seed_gives_another_model(method: str, phantom: Path, tmp_path: Path) -> None:
    first = load_file(trained(method, phantom, tmp_path / "a") / "model.safetensors")
    second = load_file(trained(method, phantom, tmp_path / "b", seed=1) / "model.safetensors")
    assert any(not torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("method", METHODS)
def test_takes_colour(method: str, phantom: Path, images: list[Path], tmp_path: Path) -> None:
    scores, maps = run(load_model(trained(method, phantom, tmp_path, channels=3), "cpu"), images[:1])
    assert np.isfinite(scores).all()
    assert maps.shape == (1, 32, 32)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("profile", ["paper", "quick"])
def test_profiles_resolve(method: str, profile: str) -> None:
    config = resolve(method, profile, [])
    assert config.method == method
    assert config.data.size in (64, 128)


SIZED = sorted(set(METHODS) - {"brightness", "area", "patchcore"})


@pytest.mark.parametrize("method", SIZED)
def test_a_size_it_cannot_take_is_one_line(run_cli: Cli, method: str, phantom: Path, tmp_path: Path) -> None:
    line = refused(
        run_cli("train", "--data", phantom, "--out", tmp_path / "run", "--method", method, "--set", "data.size=37"),
        f"method '{method}'", "37",
    )  # fmt: skip
    assert "multiple" in line or "4·2^k" in line or "power" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", sorted(FEATURES))
def test_without_feature_weights_it_says_what_to_install(
    run_cli: Cli, method: str, phantom: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reshift.nets import patches, perceptual

    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite_pytorch", None)
    for cached in (patches.feature_net, perceptual.network):
        cached.cache_clear()
    settings = [part for k, v in TINY[method].items() for part in ("--set", f"model.{k}={v}")]
    outcome = run_cli("train", "--data", phantom, "--out", tmp_path, "--method", method, "--set", "data.size=32", *settings)
    refused(outcome, "pip install 'reshift[features]'")
    assert not (tmp_path / "bundle").exists()


def test_a_stand_in_says_so_wherever_it_is_shown(run_cli: Cli, phantom: Path, tmp_path: Path) -> None:
    for method in ("diffuse", "brightness"):
        bundle = trained(method, phantom, tmp_path / method)
        out = tmp_path / method / "evaluation"
        assert run_cli("evaluate", bundle, "--data", phantom, "--out", out).code == 0
    assert "diffuse† on" in (tmp_path / "diffuse" / "evaluation" / "report.html").read_text()
    assert "is a stand-in" in (tmp_path / "diffuse" / "evaluation" / "report.html").read_text()
    assert "is a stand-in" not in (tmp_path / "brightness" / "evaluation" / "report.html").read_text()
    folders = [tmp_path / method / "evaluation" for method in ("brightness", "diffuse")]
    assert run_cli("compare", *folders, "--out", tmp_path / "both").code == 0
    for name in ("compare.md", "compare.html"):
        text = (tmp_path / "both" / name).read_text()
        assert "diffuse†" in text
        assert "is a stand-in" in text
    assert "†" in run_cli("methods").out
