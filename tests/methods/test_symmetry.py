"""The witness "symmetry": what it compares, when it is asked, and the rule that measures how symmetric normals are."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_reshift import LITE0, build, filled, images

from reshift.config import DataConfig
from reshift.data.manifest import load_cases
from reshift.data.phantom import write_phantom
from reshift.methods.detector import Normals
from reshift.methods.reshift.symmetry import Symmetry, distance_to_mirror
from reshift.training.normals import describe, symmetry


def test_the_distance_is_to_the_nearest_patch_around_the_mirrored_place() -> None:
    patches = torch.randn(2, 5, 12, 12, generator=torch.Generator().manual_seed(0))
    found, reach = distance_to_mirror(patches), 1  # 0.11 of 12
    for y, x in ((5, 5), (0, 0), (11, 3)):
        around = [
            patches[:, :, min(11, max(0, y + dy)), min(11, max(0, 11 - x + dx))]
            for dy in range(-reach, reach + 1) for dx in range(-reach, reach + 1)
        ]  # fmt: skip
        expected = torch.stack([(patches[:, :, y, x] - other).norm(dim=1) for other in around]).amin(0)
        torch.testing.assert_close(found[:, 0, y, x], expected, rtol=1e-4, atol=1e-5)


def test_a_symmetric_image_shows_nothing_and_a_spot_on_one_side_shows() -> None:
    x = images(1, seed=3)
    x = (x + x.flip(-1)) / 2.0
    spot = x.clone()
    spot[..., 12:20, 4:10] = 0.9
    model = filled(symmetry="on", strokes=0.0)
    [witness] = [w for w in model.witnesses if isinstance(w, Symmetry)]
    with torch.no_grad():
        plain, marked = (witness(model._see(image))[0, 0] for image in (x, spot))
    assert float(marked[12:20, 4:10].mean()) > 1.5 * float(plain[12:20, 4:10].mean())


def test_it_needs_no_training_and_has_the_weight_of_a_kind() -> None:
    model = build(symmetry="on")
    assert [str(w.kind) for w in model.witnesses] == ["plain", "featured", "memory", "denoising", "symmetry"]
    assert [stage.name for stage in model.stages()] == [stage.name for stage in build().stages()]
    assert model.fusion.weights.tolist() == pytest.approx([0.2] * 5)
    assert model.feature_names == (LITE0,)
    assert [stage.decided_by for stage in model.stages()] == [stage.decided_by for stage in build().stages()]


@pytest.mark.parametrize(("measured", "wish", "expected"), [
    (0.3, "auto", "on"), (0.2, "auto", "off"), (0.0, "on", None), (0.9, "off", None),
])  # fmt: skip
def test_it_is_asked_where_normals_are_symmetric(measured: float, wish: str, expected: str | None) -> None:
    assert build(symmetry=wish).choose_settings(Normals(1.0, measured)).get("symmetry") == expected


def test_symmetry_is_what_images_have_beyond_what_all_share() -> None:
    rng = np.random.default_rng(0)
    noise = [rng.uniform(-0.8, 1.0, (32, 32)).astype(np.float32) for _ in range(12)]
    symmetric = [((image + image[:, ::-1]) / 2).astype(np.float32) for image in noise]
    layers = np.linspace(-0.8, 1.0, 32, dtype=np.float32)[:, None].repeat(32, 1)
    assert symmetry(symmetric) > 0.9
    assert abs(symmetry(noise)) < 0.1
    assert (
        abs(symmetry([(layers + 0.1 * image).astype(np.float32) for image in noise])) < 0.1
    )  # its own mirror image is no more alike than others
    assert symmetry([np.full((32, 32), -1.0, np.float32)] * 3) == 0.0  # black: unknown


def test_normals_are_described_by_their_files(tmp_path: Path) -> None:
    manifest = write_phantom(tmp_path / "data", kind="ultrasound", train=20, test_normal=0, test_abnormal=0, slices=2, size=64)
    found = describe(load_cases(manifest), DataConfig(size=64))
    assert found.images_per_subject == 2.0
    assert found.symmetry < 0.25
    assert found == describe(load_cases(manifest), DataConfig(size=64))
