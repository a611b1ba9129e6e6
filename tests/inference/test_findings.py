"""Findings against SimpleITK's label statistics, on oblique volumes with unequal spacing, and against all pairs of voxels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dicom_files import ct, grey, values, write
from dicom_kinds import KINDS
from numpy.typing import NDArray
from volumes import save_head

from reshift.data.dicom.series import DicomVolume, read_dicom
from reshift.data.image import Image
from reshift.data.read import open_input
from reshift.data.volume import Volume
from reshift.inference.findings.case import image_findings, volume_findings
from reshift.inference.findings.diameter import extreme_voxels, longest_diameter
from reshift.inference.findings.measure import FIELDS, MAX_FINDINGS, find
from reshift.inference.findings.regions import RegionFinder, paint
from reshift.inference.findings.space import Space

sitk, ndimage = pytest.importorskip("SimpleITK"), pytest.importorskip("scipy.ndimage")


def blobs(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    """Smooth noise: regions of many shapes."""
    return np.asarray(ndimage.gaussian_filter(rng.random(shape), 1.2), dtype=np.float32)


def turned(rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Direction (columns x, y, z), spacing and origin of an oblique grid."""
    direction = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    direction[:, 0] *= np.sign(np.linalg.det(direction))
    return direction, rng.uniform(0.4, 4.0, 3), rng.normal(size=3) * 50.0


@pytest.mark.parametrize("seed", range(6))
def test_measures_are_those_of_simpleitk(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape, (direction, spacing, origin) = tuple(int(n) for n in rng.integers(6, 28, 3)), turned(rng)
    heat = blobs(shape, rng)
    threshold = float(np.quantile(heat, 0.93))
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = (direction * spacing)[:, ::-1], origin  # ours is for (slice, row, column)
    found = find(list(enumerate(heat)), threshold, Space("LPS", "mm", affine, volumetric=True), 0.0)
    assert found is not None
    images = [sitk.GetImageFromArray(array) for array in ((heat > threshold).astype(np.uint8), heat)]
    for image in images:
        image.SetSpacing(spacing.tolist())
        image.SetOrigin(origin.tolist())
        image.SetDirection(direction.ravel().tolist())
    labels = sitk.ConnectedComponent(images[0], True)  # 26 neighbours
    sizes, grey_values = sitk.LabelShapeStatisticsImageFilter(), sitk.LabelIntensityStatisticsImageFilter()
    sizes.ComputeFeretDiameterOn()
    sizes.Execute(labels)
    grey_values.Execute(labels, images[1])
    assert found.findings[0]["of"] == sizes.GetNumberOfLabels()
    for finding, region in zip(found.findings, found.regions, strict=True):
        label = labels[[int(i) for i in region.peak_at[::-1]]]
        where = np.argwhere(sitk.GetArrayFromImage(labels) == label)
        places = np.array([labels.TransformIndexToPhysicalPoint([int(i) for i in at[::-1]]) for at in where])
        near: Any = {"atol": 1e-3, "rtol": 1e-5}
        np.testing.assert_allclose(finding["volume"], sizes.GetPhysicalSize(label), **near)
        np.testing.assert_allclose(finding["longest_diameter"], sizes.GetFeretDiameter(label), **near)
        np.testing.assert_allclose(finding["centroid"], sizes.GetCentroid(label), **near)
        np.testing.assert_allclose(finding["box"], [places.min(axis=0), places.max(axis=0)], **near)
        np.testing.assert_allclose(finding["peak"], grey_values.GetMaximum(label), rtol=1e-6)
        np.testing.assert_allclose(finding["mean"], grey_values.GetMean(label), rtol=1e-5)
        at = labels.TransformIndexToPhysicalPoint([int(i) for i in grey_values.GetMaximumIndex(label)])
        np.testing.assert_allclose(finding["peak_at"], at, **near)
        assert finding["voxels"] == len(where)
        np.testing.assert_array_equal(np.argwhere(paint([region], heat.shape)), where)


@pytest.mark.parametrize("shape", [(24, 40, 36), (3, 160, 150)])
def test_the_longest_diameter_is_exact(shape: tuple[int, int, int]) -> None:
    """Regions with far more voxels than are compared pair by pair: a ball, a ring and a noisy block."""
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij"))
    radius = np.sqrt((grid**2).sum(axis=0))
    matrix = turned(rng)[0] * np.array([2.0, 0.7, 0.9])
    for mask in (radius < 0.9, (radius < 0.95) & (radius > 0.6), rng.random(shape) < 0.5):
        finder = RegionFinder(0.5)
        for k, plane in enumerate(mask):
            finder.add(k, plane.astype(np.float32))
        regions = finder.regions()
        assert regions is not None
        region = max(regions, key=lambda region: region.voxels)
        ends = extreme_voxels(region.runs) @ matrix.T
        directions = rng.normal(size=(3, 500))
        spread = np.ptp(ends @ (directions / np.linalg.norm(directions, axis=0)), axis=0).max()  # at most the diameter
        found = longest_diameter(extreme_voxels(region.runs), matrix)
        assert spread <= found + 1e-9
        every = ends[:: max(1, len(ends) // 800)]
        assert np.sqrt(((every[:, None] - every[None]) ** 2).sum(axis=2).max()) <= found + 1e-9
        assert found == pytest.approx(spread, rel=1e-2)


def test_regions_touch_at_corners_and_across_slices_but_not_over_a_missing_slice() -> None:
    heat = np.zeros((6, 16, 16), dtype=np.float32)
    for at in ((0, 3, 3), (1, 4, 4), (2, 3, 5), (4, 2, 6), (5, 9, 9)):
        heat[at] = 1.0
    finder = RegionFinder(0.5)
    for k, plane in enumerate(heat):
        finder.add(k, plane)
    assert sorted(region.voxels for region in finder.regions() or ()) == [1, 1, 3]
    gap = RegionFinder(0.5)
    for k in (0, 2):  # slice 1 was not scored
        gap.add(k, np.ones((4, 4), dtype=np.float32))
    assert [region.voxels for region in gap.regions() or ()] == [16, 16]
    empty = RegionFinder(0.5)
    empty.add(0, np.full((4, 4), np.nan, dtype=np.float32))
    assert empty.regions() == []


def test_small_regions_are_left_out_and_many_are_cut_at_the_highest_peaks() -> None:
    space, heat = Space("LPS", "mm", np.eye(4), volumetric=True), np.zeros((1, 400, 400), dtype=np.float32)
    heat[0, ::3, ::8] = heat[0, ::3, 1::8] = heat[0, ::3, 2::8] = 1.0  # three voxels long: 2 mm between the outer centres
    heat[0, 3, 8] = 2.0
    found, none = (find([(0, heat[0])], 0.5, space, least) for least in (2.0, 2.5))
    assert found is not None
    assert none is not None
    assert none.findings == []
    assert len(found.findings) == len(found.regions) == MAX_FINDINGS
    assert {finding["of"] for finding in found.findings} == {134 * 50}
    assert found.findings[0]["peak"] == 2.0
    assert [finding["finding"] for finding in found.findings] == list(range(1, MAX_FINDINGS + 1))
    assert tuple(found.findings[0]) == FIELDS


def test_a_map_that_is_all_specks_has_no_list_of_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshift.inference.findings.regions.MAX_RUNS", 100)
    heat = np.random.default_rng(0).random((64, 64)).astype(np.float32)
    assert find([(0, heat)], 0.5, Space("image", "pixel", np.eye(4), volumetric=False), 0.0) is None


def box_in(shape: tuple[int, ...]) -> tuple[NDArray[np.float32], tuple[slice, ...]]:
    heat = np.zeros(shape, dtype=np.float32)
    inside = (slice(1, 3), slice(5, 9), slice(4, 10))[3 - len(shape) :]
    heat[inside] = 1.0
    return heat, inside


@pytest.mark.parametrize("orientation", [((2, 1, 0), (False, False, False)), ((1, 2, 0), (True, False, True))])
def test_a_nifti_volume_has_ras_coordinates_and_its_own_slices(tmp_path: Path, orientation: Any) -> None:
    volume = open_input(save_head(tmp_path / "a.nii.gz", orientation=orientation))
    assert isinstance(volume, Volume)
    heat, _ = box_in(volume.voxels.shape)
    found = volume_findings(volume, heat, {k: 0.5 - 0.1 * k for k in range(4)}, 0.5, 1.0)
    assert found is not None
    [finding] = found.findings
    centre = volume.affine @ [6.5, 6.5, 1.5, 1.0]
    np.testing.assert_allclose(finding["centroid"], centre[:3], atol=1e-3)
    assert (finding["space"], finding["unit"], finding["slice_p_value"]) == ("RAS+", "mm", pytest.approx(0.3))
    assert finding["slices"] == sorted((volume.native_index(1), volume.native_index(2)))
    native = np.argwhere(volume.to_native(heat) > 0.5)
    places = native @ volume.native_affine[:3, :3].T + volume.native_affine[:3, 3]  # as any NIfTI reader computes them
    np.testing.assert_allclose(finding["box"], [places.min(axis=0), places.max(axis=0)], atol=1e-3)
    assert finding["volume"] == pytest.approx(48 * 3.0 * 1.0 * 1.25)


def test_a_dicom_series_has_lps_coordinates(tmp_path: Path) -> None:
    import pydicom

    volume = KINDS["CT series, oblique"](tmp_path)
    assert isinstance(volume, DicomVolume)
    heat, _ = box_in(volume.voxels.shape)
    found = volume_findings(volume, heat, dict.fromkeys(range(5), 0.1), 0.5, 1.0)
    assert found is not None
    [finding] = found.findings
    places = []
    for k, plane in enumerate(volume.to_native(heat)):  # PS3.3 C.7.6.2.1.1, slice by slice
        ds = pydicom.dcmread(volume.frames[k][0])
        across, down = np.array(ds.ImageOrientationPatient[:3]), np.array(ds.ImageOrientationPatient[3:])
        for row, column in np.argwhere(plane > 0.5):
            along = across * column * ds.PixelSpacing[1] + down * row * ds.PixelSpacing[0]
            places.append(np.array(ds.ImagePositionPatient) + along)
    np.testing.assert_allclose(finding["centroid"], np.mean(places, axis=0), atol=1e-3)
    np.testing.assert_allclose(finding["box"], [np.min(places, axis=0), np.max(places, axis=0)], atol=1e-3)
    assert finding["space"] == "LPS"


@pytest.mark.parametrize(
    ("made", "space", "unit", "area"),
    [
        (lambda: ct(values(), (-10.0, 20.0, 30.0)), "LPS", "mm", 24 * 0.8 * 0.6),
        (lambda: grey(values(), stored=12, ImagerPixelSpacing=[0.2, 0.2]), "image", "mm", 24 * 0.04),
        (lambda: grey(values(), stored=12), "image", "pixel", 24.0),
    ],
)
def test_images_have_areas_and_say_what_they_are_measured_in(
    tmp_path: Path, made: Any, space: str, unit: str, area: float
) -> None:
    image = read_dicom(write(made(), tmp_path / "a.dcm"))
    assert isinstance(image, Image)
    heat, _ = box_in((24, 20))
    found = image_findings(image.source, heat, 0.5, 0.1)
    assert found is not None
    [finding] = found.findings
    assert (finding["space"], finding["unit"], finding["volume"], finding["slices"]) == (space, unit, None, None)
    assert finding["area"] == pytest.approx(area, abs=1e-3)
    if space == "LPS":
        np.testing.assert_allclose(finding["centroid"], [-10 + 6.5 * 0.6, 20 + 6.5 * 0.8, 30.0], atol=1e-3)
    else:
        np.testing.assert_allclose(finding["centroid"], [6.5 * image.spacing[1], 6.5 * image.spacing[0], 0.0], atol=1e-3)
