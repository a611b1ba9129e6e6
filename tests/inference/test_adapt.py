"""``reshift calibrate`` on a new site: a method adapts without training, and the bundle survives a kill at any moment."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from helpers import Cli, noise, save
from torch import Tensor

from reshift.config import Frozen
from reshift.errors import UserError
from reshift.inference.bundle import ASIDE, FILES, load_bundle
from reshift.inference.calibrate import calibrate_bundle
from reshift.inference.model import load_model
from reshift.methods.detector import Detector, Prediction, Profiles
from reshift.training.run import resolve, train_run


class NearestGrey(Detector):
    """Remembers the grey value of every fold; an image's score is the distance to the nearest one that may be used."""

    Settings = Frozen
    profiles: ClassVar[Profiles] = {"paper": {}, "quick": {}}
    folds = 2
    centre: Tensor
    memory: Tensor

    def __init__(self, settings: Frozen, size: int, channels: int) -> None:
        del settings, size, channels
        super().__init__()
        self.register_buffer("centre", torch.zeros(1))
        self.register_buffer("memory", torch.full((2,), 1e3))  # nothing is near

    @property
    def pixel_threshold(self) -> float:  # type: ignore[override]
        return float(self.centre) + 0.5

    def fit_normalisation(self, batches: Iterable[tuple[Tensor, int | None]]) -> None:
        self.centre.copy_(torch.cat([x.mean((1, 2, 3)) for x, _ in batches]).mean())

    def adapt(self, batches: Iterable[tuple[Tensor, int]]) -> bool:
        pairs = [(x.mean((1, 2, 3)), fold) for x, fold in batches]
        for fold in range(self.folds):
            self.memory[fold] = torch.cat([means for means, other in pairs if other == fold]).mean()
        return True

    def forward(self, x: Tensor, without: int | None = None) -> Prediction:
        known = self.memory if without is None else self.memory[1 - without : 2 - without]
        distance = (x.mean((1, 2, 3))[:, None] - known[None]).abs().amin(1)
        return Prediction(distance, x.mean(1))


class OneMemory(NearestGrey):
    """Keeps images, but cannot leave any out."""

    folds = 1

    def adapt(self, batches: Iterable[tuple[Tensor, int]]) -> bool:
        return len(list(batches)) > 0


def site(folder: Path, level: int, count: int = 12) -> Path:
    """Images of subjects with two each, around a grey level."""
    for i in range(count):
        save((noise(i) // 4 + level + i // 2).astype(np.uint8), folder / f"s{i // 2:02d}-{i}.png")
    return folder


def trained(tmp_path: Path, name: str = "NearestGrey") -> Path:
    layer = {"data": {"size": 32, "subject": r"(s\d+)-"}, "calibrate": {"features": "off"}}
    return train_run(resolve(f"test_adapt:{name}", "paper", [layer]), site(tmp_path / "old", 20), tmp_path / name)


def weights(bundle: Path) -> dict[str, list[float]]:
    return {name: value.tolist() for name, value in load_bundle(bundle).detector.state_dict().items()}


def test_a_method_adapts_and_its_normals_are_judged_without_themselves(run_cli: Cli, tmp_path: Path) -> None:
    bundle, new = trained(tmp_path), site(tmp_path / "new", 150)
    before = load_bundle(bundle)
    done = run_cli("calibrate", bundle, "--data", new, "--subject", r"(s\d+)-", "--device", "cpu")
    assert (done.code, "12 normals of 6 subjects" in done.out) == (0, True), done.err
    after = load_bundle(bundle)
    assert after.fingerprint != before.fingerprint
    memory = after.detector.get_buffer("memory")
    assert ((memory > 0.1) & (memory < 0.8)).all()  # bright, as the new site is
    assert after.calibration is not None
    held_out = after.calibration.held_out
    assert held_out is not None
    assert held_out.subjects == 6
    assert after.calibration.training is None  # the scores of a model that is no more
    assert held_out.pixel_threshold == float(after.detector.get_buffer("centre")) + 0.5 != held_out.quantile_threshold
    scores = sorted(result.score for result in load_model(bundle, "cpu").predict(sorted(new.glob("*.png"))))
    assert all(mine >= seen - 1e-6 for mine, seen in zip(held_out.scores, scores, strict=True))
    assert max(held_out.scores) > max(scores)  # a fold is farther from the other than from itself
    assert f"{held_out.image_threshold:.6g}" in (bundle / "README.md").read_text()
    assert sorted(path.name for path in bundle.iterdir() if path.name != ".lock") == sorted(FILES)


def test_keeping_images_needs_folds(tmp_path: Path) -> None:
    bundle = trained(tmp_path, "OneMemory")
    before = {name: (bundle / name).read_bytes() for name in FILES}
    with pytest.raises(ValueError, match="no folds"):
        calibrate_bundle(bundle, tmp_path / "old", "cpu")
    assert {name: (bundle / name).read_bytes() for name in FILES} == before


def test_by_default_only_the_normalisation_changes(tiny_bundle: Path, folder_of_images: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    before = load_bundle(bundle)
    calibrate_bundle(bundle, folder_of_images, "cpu")
    after = load_bundle(bundle)
    assert (after.fingerprint, after.config, after.facts) == (before.fingerprint, before.config, before.facts)
    assert before.calibration is not None
    assert after.calibration is not None
    assert after.calibration.training == before.calibration.training  # nothing was learned anew
    assert after.calibration.held_out != before.calibration.held_out


def killed_after(count: int, bundle: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Calibrate, but stop before the n-th file is written, moved or removed; whether the end was not reached."""
    steps = count

    def step(do: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            if not steps:
                raise KeyboardInterrupt
            steps -= 1
            return do(*args, **kwargs)

        return run

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", step(Path.replace))  # every file that is written or moved goes through it
        patch.setattr(shutil, "rmtree", step(shutil.rmtree))
        try:
            calibrate_bundle(bundle, data, "cpu")
        except KeyboardInterrupt:
            return True
    return False


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left loads, and the next calibration works."""
    original, new = trained(tmp_path), site(tmp_path / "new", 150)
    finished = Path(shutil.copytree(original, tmp_path / "finished"))
    calibrate_bundle(finished, new, "cpu")
    old_weights, new_weights, outcomes, more = weights(original), weights(finished), list[str](), True
    while more:
        bundle = Path(shutil.copytree(original, tmp_path / f"killed{len(outcomes)}"))
        more = killed_after(len(outcomes), bundle, new, monkeypatch)
        found = weights(bundle)
        assert found in (old_weights, new_weights)
        outcomes.append("old" if found == old_weights else "new")
        calibrate_bundle(bundle, new, "cpu")
        assert weights(bundle) == new_weights
        assert not (bundle / ASIDE).exists()
    assert outcomes[0] == "old"
    assert outcomes[-1] == "new"
    assert outcomes == sorted(outcomes, reverse=True)  # once new, always new
    assert len(outcomes) > 2 * len(FILES)


def test_a_wrong_subject_rule_is_one_line(tiny_bundle: Path, folder_of_images: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    with pytest.raises(UserError, match="is not a regular expression"):
        calibrate_bundle(bundle, folder_of_images, "cpu", "(")
    assert json.loads((bundle / "config.json").read_text())["format"] == 1
