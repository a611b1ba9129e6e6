"""The rules of DICOM results: burned-in text, window, padding, no institution, and all files of a case or none."""

from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from dicom_files import ct, series, values, write
from numpy.typing import NDArray

from reshift.data.dicom.series import DicomVolume, read_dicom, read_series
from reshift.errors import UserError
from reshift.inference.dicom_export.export import export_dicom
from reshift.inference.dicom_export.sources import read_sources

pytest.importorskip("highdicom")


def heat(shape: tuple[int, ...]) -> NDArray[np.float32]:
    maps = np.random.default_rng(3).random(shape).astype(np.float32)
    maps[..., :2, :] = np.nan  # outside the crop
    return maps


def stack(folder: Path, **tags: Any) -> DicomVolume:
    series(folder, 3, **tags)
    return read_series(folder)


@pytest.mark.parametrize(("given", "kept"), [("YES", "YES"), ("NO", "NO"), (None, None), ("PERHAPS", None)])
def test_overlays_say_of_burned_in_text_what_the_source_says(tmp_path: Path, given: str | None, kept: str | None) -> None:
    ds = ct(values())
    if given is not None:
        ds.BurnedInAnnotation = given
    image = read_dicom(write(ds, tmp_path / "a.dcm"))
    overlay = export_dicom(tmp_path / "out", read_sources(image), image, heat((24, 20)), 0.7)[-1]
    assert pydicom.dcmread(overlay).get("BurnedInAnnotation") == kept


def test_the_window_and_the_padding_of_a_map(tmp_path: Path) -> None:
    """A window narrower than 1 needs LINEAR_EXACT (PS3.3 C.11.2.1.2), and padding is below every value."""
    image = read_dicom(write(ct(values()), tmp_path / "a.dcm"))
    for name, maps in (("positive", heat((24, 20))), ("negative", heat((24, 20)) - np.float32(1e30))):
        made = pydicom.dcmread(export_dicom(tmp_path / name, read_sources(image), image, maps, 0.7)[1])
        [window] = made.SharedFunctionalGroupsSequence[0].FrameVOILUTSequence
        assert window.VOILUTFunction == "LINEAR_EXACT"
        assert made.FloatPixelPaddingValue == made.FloatPixelPaddingRangeLimit < np.nanmin(maps)
        np.testing.assert_array_equal(made.pixel_array == made.FloatPixelPaddingValue, np.isnan(maps))
    full = pydicom.dcmread(export_dicom(tmp_path / "full", read_sources(image), image, np.nan_to_num(maps), 0.7)[1])
    assert "FloatPixelPaddingValue" not in full
    assert "FloatPixelPaddingRangeLimit" not in full


def test_neither_the_institution_nor_the_scanner_is_in_a_result(tmp_path: Path) -> None:
    names = {tag: f"Secret {tag[:6]}" for tag in (
        "InstitutionName", "InstitutionAddress", "InstitutionalDepartmentName", "StationName", "DeviceSerialNumber",
        "OperatorsName", "Manufacturer", "ManufacturerModelName")}  # fmt: skip
    volume = stack(tmp_path / "in", **names)
    for path in export_dicom(tmp_path / "out", read_sources(volume), volume, heat(volume.voxels.shape), 0.7):
        assert b"Secret" not in path.read_bytes()
        assert pydicom.dcmread(path).Manufacturer == "Reshift"


@pytest.mark.parametrize("refused", ["write_parametric_map", "write_secondary_capture"])
def test_a_refused_result_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise UserError(f"{path}: could not be made")

    volume, out = stack(tmp_path / "in"), tmp_path / "out"
    export_dicom(out, read_sources(volume), volume, heat(volume.voxels.shape), 0.7)  # of an earlier run
    monkeypatch.setattr(f"reshift.inference.dicom_export.export.{refused}", refuse)
    for _ in range(2):
        with pytest.raises(UserError, match=rf"{out}/(map|overlay-0001).dcm: could not be made"):
            export_dicom(out, read_sources(volume), volume, heat(volume.voxels.shape), 0.7)
        assert not out.exists()
    monkeypatch.undo()
    (out / ".unfinished").mkdir(parents=True)  # a run was killed here
    (out / ".unfinished" / "mask.dcm").write_bytes(b"half")
    files = export_dicom(out, read_sources(volume), volume, heat(volume.voxels.shape), 0.7)
    assert sorted(out.iterdir()) == sorted(files)
