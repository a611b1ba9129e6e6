"""DICOM series: order, affine and refusals, compared voxel by voxel with the formula of the standard."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dicom_files import SECRETS, change, cosines, ct, enhanced, grey, series, values, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset

from reshift.data.dicom.series import DicomVolume, Series, find_series, read_dicom, read_series
from reshift.data.nifti import read_nifti
from reshift.errors import UserError

TURNS = {
    "axial": cosines(),
    "oblique": cosines(0.2, -0.35, 0.15),
    "coronal": np.array([1.0, 0, 0, 0, 0, -1]),
    "sagittal": np.array([0.0, 1, 0, 0, 0, -1]),
    "feet first, prone": np.array([-1.0, 0, 0, 0, 1, 0]),
}


def ras(ds: Dataset, row: int, column: int) -> Any:
    """PS3.3 C.7.6.2.1.1: P = S + X·Δi·i + Y·Δj·j with X, Y the two halves of IOP; Δi is PixelSpacing[1]. LPS → RAS at the end."""
    where = []
    for axis in range(3):
        x = float(ds.ImageOrientationPatient[axis]) * float(ds.PixelSpacing[1]) * column
        y = float(ds.ImageOrientationPatient[3 + axis]) * float(ds.PixelSpacing[0]) * row
        where.append(float(ds.ImagePositionPatient[axis]) + x + y)
    return [-where[0], -where[1], where[2]]


def check_every_voxel(volume: DicomVolume, slices: list[Dataset], stored: Any, slope: float, intercept: float) -> None:
    """Each canonical voxel has the position and the value of its DICOM slice."""
    native = np.full(volume.native_shape, -1, dtype=np.int64)
    for k in range(len(slices)):
        native[k] = np.arange(native[k].size).reshape(native[k].shape) + k * native[k].size
    index = volume.from_native(native)
    rng = np.random.default_rng(0)
    for s, r, c in zip(*(rng.integers(0, n, 200) for n in index.shape), strict=True):
        k, row, column = np.unravel_index(index[s, r, c], volume.native_shape)
        np.testing.assert_allclose((volume.affine @ [c, r, s, 1])[:3], ras(slices[k], row, column), atol=1e-4)
        assert volume.plane(s)[r, c] == pytest.approx(stored[k][row, column] * slope + intercept)
    np.testing.assert_array_equal(volume.to_native(volume.voxels), np.stack(stored))


@pytest.mark.parametrize("turn", TURNS)
def test_positions_of_a_series_follow_the_standard(tmp_path: Path, turn: str) -> None:
    slices = series(tmp_path, 5, TURNS[turn])
    volume = read_series(tmp_path)
    assert volume.notes == ()
    assert [path.name for path, _ in volume.frames] == [
        next(p.name for p in tmp_path.iterdir() if str(ds.SOPInstanceUID).encode() in p.read_bytes()) for ds in slices
    ]
    check_every_voxel(volume, slices, [values(k) for k in range(5)], 1, -1024)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(angles=st.tuples(*[st.floats(-3, 3)] * 3), count=st.integers(2, 6))
def test_any_orientation(tmp_path: Path, angles: tuple[float, float, float], count: int) -> None:
    shutil.rmtree(tmp_path / "s", ignore_errors=True)
    slices = series(tmp_path / "s", count, cosines(*angles))
    check_every_voxel(read_series(tmp_path / "s"), slices, [values(k) for k in range(count)], 1, -1024)


@pytest.mark.parametrize("turn", TURNS)
def test_positions_of_an_enhanced_file_follow_the_standard(tmp_path: Path, turn: str) -> None:
    ds = enhanced((2, 0, 3, 1), TURNS[turn])
    volume = read_dicom(write(ds, tmp_path / "a.dcm"))
    assert isinstance(volume, DicomVolume)
    assert volume.frames == tuple((tmp_path / "a.dcm", frame) for frame in (1, 3, 0, 2))
    slices = []
    for _, frame in volume.frames:
        place = ds.PerFrameFunctionalGroupsSequence[frame].PlanePositionSequence[0].ImagePositionPatient
        slices.append(change(Dataset(), ImagePositionPatient=place, PixelSpacing=[0.8, 0.6],
                             ImageOrientationPatient=[float(v) for v in TURNS[turn]]))  # fmt: skip
    check_every_voxel(volume, slices, [values(k) for k in range(4)], 2, -5)
    assert volume.window == (199.5, 999.5)  # of every frame
    np.testing.assert_array_equal(read_series(tmp_path).voxels, volume.voxels)


REAL_VOLUME = Path(__file__).parents[3] / "shared" / "raw" / "IXI132-HH-1415_T1.nii.gz"


@pytest.mark.skipif(not REAL_VOLUME.exists(), reason="no real volume here (shared/raw/IXI132-HH-1415_T1.nii.gz)")
def test_a_real_volume_is_the_same_from_nifti_and_from_dicom(tmp_path: Path) -> None:
    """The two readers share no geometry code: nibabel's affine, and slices written by the standard's formula."""
    nifti = read_nifti(REAL_VOLUME)
    array, affine = nifti.to_native(nifti.voxels), nifti.native_affine
    lps, lengths = np.diag([-1, -1, 1]) @ affine[:3], np.linalg.norm(affine[:3, :3], axis=0)
    for k in range(array.shape[2]):
        ds = ct(array[:, :, k].T, lps @ [0, 0, k, 1], [*(lps[:, 0] / lengths[0]), *(lps[:, 1] / lengths[1])],
                PixelSpacing=[float(f"{lengths[1]:.10g}"), float(f"{lengths[0]:.10g}")],
                RescaleSlope=float(f"{nifti.slope:.10g}"), RescaleIntercept=float(f"{nifti.intercept:.10g}"))  # fmt: skip
        write(ds, tmp_path / f"{(k * 37) % 1000}")
    dicom = read_series(tmp_path)
    np.testing.assert_array_equal(dicom.voxels, nifti.voxels)
    np.testing.assert_allclose(dicom.affine, nifti.affine, atol=1e-3)
    assert dicom.window == pytest.approx(nifti.window, rel=1e-6)


# ---- grey values of a whole series -----------------------------------------------------------------------------------


def test_one_window_for_all_slices_or_none(tmp_path: Path) -> None:
    series(tmp_path / "same", 4, WindowCenter=40, WindowWidth=400)
    assert read_series(tmp_path / "same").window == (-160, 239)
    assert read_series(tmp_path / "same").image(1).window == (-160, 239)
    for k, ds in enumerate(series(tmp_path / "own", 4)):
        write(change(ds, WindowCenter=40 + k, WindowWidth=400), tmp_path / "own" / f"{k}.dcm")
    for old in (tmp_path / "own").glob("IM*"):
        old.unlink()
    series(tmp_path / "none", 4)
    assert read_series(tmp_path / "own").window == read_series(tmp_path / "none").window  # of the volume, never one per slice


def test_slices_with_their_own_rescale(tmp_path: Path) -> None:
    for k in range(4):
        write(ct(values(k), (0, 0, k * 3.0), RescaleSlope=0.5 + k, RescaleIntercept=k), tmp_path / f"{k}")
    volume = read_series(tmp_path)
    for k in range(4):
        np.testing.assert_allclose(volume.plane(k), values(k) * (0.5 + k) + k, rtol=1e-6)


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("slope", [1.0, -1.0])
def test_padding_and_inversion_of_a_series(tmp_path: Path, photometric: str, slope: float) -> None:
    tags = {"PixelPaddingValue": 4000, "PhotometricInterpretation": photometric, "RescaleSlope": slope, "RescaleIntercept": 3}
    for k in range(3):
        pixels = values(k, low=100, high=900)
        pixels[0] = 4000
        write(ct(pixels, (0, 0, k * 3.0), **tags), tmp_path / f"{k}")
    volume, sign = read_series(tmp_path), -1 if photometric == "MONOCHROME1" else 1
    planes = np.stack([volume.plane(k) for k in range(3)])
    np.testing.assert_allclose(planes[:, 1:], [sign * (values(k, low=100, high=900)[1:] * slope + 3) for k in range(3)])
    assert (planes[:, 0] == planes[:, 1:].min()).all()


def test_a_radiograph_needs_no_position(tmp_path: Path) -> None:
    read = read_dicom(write(grey(values(), stored=12, ImagerPixelSpacing=[0.2, 0.14]), tmp_path / "a.dcm"))
    assert not isinstance(read, DicomVolume)
    assert read.spacing == (0.2, 0.14)


# ---- notes and refusals ------------------------------------------------------------------------------------------


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as err:
        read_series(folder)
    text = str(err.value)
    assert "\n" not in text
    assert not any(part in text for secret in SECRETS for part in secret.split("^"))
    return text


def test_a_gap_is_a_note(tmp_path: Path) -> None:
    slices = series(tmp_path, 6)
    next(p for p in tmp_path.iterdir() if str(slices[3].SOPInstanceUID).encode() in p.read_bytes()).unlink()
    [note] = read_series(tmp_path).notes
    assert "2.5 mm apart, but 5 mm between" in note


def test_gantry_tilt_is_a_note_and_exact(tmp_path: Path) -> None:
    slices = series(tmp_path, 5, step=(0.0, 0.7, 2.5))
    volume = read_series(tmp_path)
    [note] = volume.notes
    assert "tilted by 15.6°" in note
    check_every_voxel(volume, slices, [values(k) for k in range(5)], 1, -1024)


def test_localisers_are_left_out_with_a_note(tmp_path: Path) -> None:
    series(tmp_path, 4)
    scout = ct(values(9, 50, 60), orientation=TURNS["coronal"], ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    write(scout, tmp_path / "scout")
    volume = read_series(tmp_path)
    assert len(volume) == 4
    assert "1 localiser image left out" in volume.notes[0]
    series(tmp_path / "all", 2, ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    assert "holds localiser images only" in refusal(tmp_path / "all")


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({"ImagePositionPatient": None}, "has no ImagePositionPatient"),
        ({"ImageOrientationPatient": None}, "has no ImageOrientationPatient"),
        ({"PixelSpacing": None}, "has no PixelSpacing"),
        ({"ImageOrientationPatient": [1.0, 0, 0, 1, 0, 0]}, "not two unit vectors at a right angle"),
        ({"ImageOrientationPatient": [0.0, 1, 0, 0, 0, -1]}, "different ImageOrientationPatient"),
        ({"PixelSpacing": [0.9, 0.9]}, "different PixelSpacing"),
        ({"ImagePositionPatient": [40.0, 0, 100]}, "do not lie along one line"),
        ({"Rows": 20, "PixelData": values(0, 20, 20).astype("<u2").tobytes()}, "differ in Rows"),
        ({"PhotometricInterpretation": "MONOCHROME1"}, "differ in PhotometricInterpretation"),
        ({"PixelData": b"\0\0"}, "its PixelData holds 2 of 960 bytes"),
        (
            {"SeriesInstanceUID": "1.2.3.4444444", "Modality": "MR"},
            "holds 2 series: CT-90208a3e (4 files), MR-789a6385 (1 file)",
        ),
    ],
    ids=str,
)
def test_one_different_slice_is_refused(tmp_path: Path, tags: dict[str, Any], expected: str) -> None:
    series(tmp_path, 4)
    write(ct(values(7), (-31.0, 12.5, 7.25 + 10.0), **tags), tmp_path / "different")
    assert expected in refusal(tmp_path)


def test_two_slices_at_one_position(tmp_path: Path) -> None:
    slices = series(tmp_path, 3, EchoTime=10)
    copy = write(slices[1], tmp_path / "copy")
    assert "is the same image; remove one of the two" in refusal(tmp_path)
    copy.unlink()
    place = slices[1].ImagePositionPatient
    write(ct(values(8), place, EchoTime=80), tmp_path / "second")
    assert "they differ in EchoTime; keep one EchoTime per folder" in refusal(tmp_path)
    write(ct(values(8), place, EchoTime=10), tmp_path / "second")
    assert "has the same position as" in (text := refusal(tmp_path))
    assert "keep one" in text
    ds = enhanced((0, 1, 1, 2))
    ds.PerFrameFunctionalGroupsSequence[2].FrameContentSequence[0].TemporalPositionIndex = 2
    with pytest.raises(UserError, match=r"frames 2 and 3 have the same position; they differ in TemporalPositionIndex"):
        read_dicom(write(ds, tmp_path / "e.dcm"))


# ---- finding ---------------------------------------------------------------------------------------------------------


def test_find_series(tmp_path: Path) -> None:
    series(tmp_path / "b", 3)
    series(tmp_path / "a", 2, SeriesInstanceUID="1.2.3", Modality="MR")
    for k in range(2):
        write(grey(values(k), stored=12, SeriesInstanceUID="1.2.4"), tmp_path / "c" / f"view{k}.dcm")
    write(ct(values(), SOPClassUID="1.2.840.10008.5.1.4.1.1.66.4", SeriesInstanceUID="1.2.5"), tmp_path / "seg.dcm")
    (tmp_path / "broken.dcm").write_bytes(b"nothing")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "round").symlink_to(tmp_path, target_is_directory=True)
    found = find_series(tmp_path)
    assert sorted((s.modality, len(s.files), s.stacked) for s in found.series) == [
        ("CT", 3, True), ("DX", 2, False), ("MR", 2, True)]  # fmt: skip
    assert found[1:] == ([tmp_path / "broken.dcm"], 1, 1)  # damaged, without an image, not DICOM
    chosen = next(s for s in found.series if s.modality == "CT")
    assert isinstance(chosen, Series)
    np.testing.assert_array_equal(read_series(chosen).voxels, read_series(tmp_path / "b").voxels)
    assert "broken.dcm: not a DICOM file" in refusal(tmp_path)
    (tmp_path / "broken.dcm").unlink()
    assert "holds 3 series: " in (text := refusal(tmp_path))
    assert "MR-" in text
    assert "1.2.3" not in text  # a uid may lead to the patient
    (tmp_path / "empty").mkdir()
    assert "no DICOM images in this folder" in refusal(tmp_path / "empty")
    assert "no such folder" in refusal(tmp_path / "nowhere")
