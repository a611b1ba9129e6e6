"""DICOM results as others see them: valid for dciodvfy, readable for dsrdump, dcmqi and highdicom; the same UIDs every time."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from dicom_checks import dciodvfy_errors, dsrdump_errors, export_findings, program
from dicom_kinds import KINDS
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes

from reshift.data.dicom.series import DicomVolume
from reshift.inference.dicom_export.sources import is_placed, read_sources

hd = pytest.importorskip("highdicom")
TIMES = ("DA", "TM", "DT")


def needs(name: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(program(name) is None, reason=f"{name} is not installed ({package})")


@needs("dciodvfy", "Debian package dicom3tools")
@needs("dsrdump", "Debian package dcmtk")
@pytest.mark.parametrize("kind", KINDS)
def test_validators_find_no_errors(tmp_path: Path, kind: str) -> None:
    scan = KINDS[kind](tmp_path / "in")
    files = export_findings(scan, tmp_path / "out")
    placed = is_placed(read_sources(scan)[0])
    slices = len(scan) if isinstance(scan, DicomVolume) else 1
    overlays = [f"overlay-{k + 1:04d}.dcm" for k in range(slices)]
    assert [path.name for path in files] == ["mask.dcm", *["map.dcm"] * placed, "report.dcm", *overlays]
    found = {path.name: dciodvfy_errors(path) for path in files[:4]}
    assert not any(found.values()), found
    assert dsrdump_errors(tmp_path / "out" / "report.dcm") == []


@needs("dciodvfy", "Debian package dicom3tools")
def test_the_validator_sees_an_error(tmp_path: Path) -> None:
    [mask, *_] = export_findings(KINDS["CT, one slice"](tmp_path / "in"), tmp_path / "out")
    broken = pydicom.dcmread(mask)
    del broken.SegmentSequence
    broken.save_as(tmp_path / "broken.dcm")
    assert dciodvfy_errors(tmp_path / "broken.dcm")


@needs("segimage2itkimage", "Python package dcmqi")
@pytest.mark.parametrize("kind", ["CT series, oblique", "enhanced MR"])
def test_dcmqi_reads_the_mask_where_it_is(tmp_path: Path, kind: str) -> None:
    sitk = pytest.importorskip("SimpleITK")
    scan = KINDS[kind](tmp_path / "in")
    assert isinstance(scan, DicomVolume)
    [mask, *_] = export_findings(scan, tmp_path / "out")
    command = [program("segimage2itkimage"), "--inputDICOM", mask, "--outputDirectory", tmp_path, "-t", "nrrd"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    labels = [s[0]["SegmentLabel"] for s in json.loads((tmp_path / "meta.json").read_text())["segmentAttributes"]]
    assert labels == ["Finding 1", "Finding 2", "Anomaly"]
    for number, box in ((1, (slice(3, 9), slice(4, 9))), (2, (slice(14, 20), slice(12, 18)))):
        theirs = sitk.ReadImage(str(tmp_path / f"{number}.nrrd"))
        at = np.argwhere(sitk.GetArrayFromImage(theirs))[:, ::-1].tolist()
        places = np.array([theirs.TransformIndexToPhysicalPoint(index) for index in at])
        ours = np.zeros(scan.voxels.shape, dtype=bool)
        ours[(slice(None), *box)] = True
        index = np.argwhere(ours)[:, ::-1]  # column, row, slice
        expected = (index @ scan.affine[:3, :3].T + scan.affine[:3, 3]) * [-1, -1, 1]
        theirs_sorted, ours_sorted = (some[np.lexsort(np.round(some, 2).T)] for some in (places, expected))
        np.testing.assert_allclose(theirs_sorted, ours_sorted, atol=1e-3)


@needs("tid1500reader", "Python package dcmqi")
def test_dcmqi_reads_the_report(tmp_path: Path) -> None:
    export_findings(KINDS["CT series"](tmp_path / "in"), tmp_path / "out")
    command = [program("tid1500reader"), "--inputDICOM", tmp_path / "out" / "report.dcm", "--outputMetadata", tmp_path / "r.json"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True)
    case, first, _ = json.loads((tmp_path / "r.json").read_text())["Measurements"]
    assert case["TrackingIdentifier"] == "Case"
    assert (first["TrackingIdentifier"], first["Finding"]["CodeMeaning"], first["ReferencedSegment"]) == (
        "Finding 1",
        "Lesion",
        1,
    )
    values = {(m["quantity"]["CodeMeaning"], m["units"]["CodeValue"]): float(m["value"]) for m in first["measurementItems"]}
    assert values["Volume", "mm3"] == pytest.approx(4 * 6 * 5 * 0.8 * 0.6 * 2.5)
    assert values["Diameter", "mm"] == pytest.approx(np.linalg.norm([3 * 2.5, 5 * 0.8, 4 * 0.6]), abs=1e-3)


def test_the_report_names_the_case_and_the_segments_of_the_mask(tmp_path: Path) -> None:
    export_findings(KINDS["US"](tmp_path / "in"), tmp_path / "out")
    report, mask = (pydicom.dcmread(tmp_path / "out" / f"{name}.dcm") for name in ("report", "mask"))
    groups = hd.sr.srread(tmp_path / "out" / "report.dcm").content.get_volumetric_roi_measurement_groups()
    assert [group.tracking_identifier for group in groups] == ["Finding 1", "Finding 2"]
    assert [group.tracking_uid for group in groups] == [item.TrackingUID for item in mask.SegmentSequence[:2]]
    assert {group.reference_type for group in groups} == {codes.DCM.ReferencedSegment}
    units = {str(m.unit.value) for group in groups for m in group.get_measurements()}
    assert units == {"{pixels}", "1"}  # the image has no spacing
    assert report.StudyInstanceUID == mask.StudyInstanceUID
    assert (report.PreliminaryFlag, report.VerificationFlag) == ("PRELIMINARY", "UNVERIFIED")


def test_a_scan_without_findings_has_a_report_too(tmp_path: Path) -> None:
    from reshift.inference.dicom_export.export import export_dicom

    scan = KINDS["CT series"](tmp_path / "in")
    assert isinstance(scan, DicomVolume)
    files = export_dicom(tmp_path / "out", read_sources(scan), scan, np.zeros(scan.voxels.shape, np.float32), 0.7)
    assert not pydicom.dcmread(files[0]).pixel_array.any()
    if program("dciodvfy"):
        assert {path.name: dciodvfy_errors(path) for path in files} == {path.name: [] for path in files}


def timeless(path: Path) -> Dataset:
    """The data set without times, which tell when it was made."""

    def remove(parent: Dataset, element: DataElement) -> None:
        if element.VR in TIMES:
            del parent[element.tag]

    ds = pydicom.dcmread(path)
    ds.walk(remove)
    return ds


def test_the_same_scan_and_model_give_the_same_objects(tmp_path: Path) -> None:
    scan = KINDS["MR series"](tmp_path / "in")
    once, again = (export_findings(scan, tmp_path / name) for name in ("once", "again"))
    assert [timeless(a) == timeless(b) for a, b in zip(once, again, strict=True)] == [True] * len(once)
    uids = [pydicom.dcmread(path).SOPInstanceUID for path in once]
    assert len(set(uids)) == len(uids)
    series = {pydicom.dcmread(path).SeriesInstanceUID for path in once}
    assert len(series) == 4  # mask, map, report, and one for all overlays


@pytest.mark.parametrize("other", [{"model": "other"}, {"model": "test", "min_diameter": 2.0}])
def test_another_model_or_setting_gives_other_objects(tmp_path: Path, other: dict[str, Any]) -> None:
    from reshift.inference.dicom_export.export import export_dicom

    scan = KINDS["CT, one slice"](tmp_path / "in")
    maps = np.random.default_rng(0).random((24, 20)).astype(np.float32)
    settings = [{"model": "test", "min_diameter": 1.0}, {"min_diameter": 1.0, **other}]
    made = [export_dicom(tmp_path / str(i), read_sources(scan), scan, maps, 0.7, **s) for i, s in enumerate(settings)]
    one, two = ({pydicom.dcmread(path).SOPInstanceUID for path in files} for files in made)
    assert not one & two
