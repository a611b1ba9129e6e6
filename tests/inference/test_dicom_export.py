"""DICOM results, opened again: every value and every place as it was, the patient in them and nowhere else."""

import gzip
import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from dicom_files import FRAME_UID, PATIENT, SECRETS, SERIES_UID, STUDY_UID, cosines, ct, enhanced, grey, series, values, write
from helpers import Cli
from numpy.typing import NDArray
from pydicom.dataset import Dataset

from reshift.data.dicom.series import DicomVolume, read_dicom, read_series
from reshift.errors import UserError
from reshift.inference.dicom_export.export import export_dicom
from reshift.inference.dicom_export.identity import Identity
from reshift.inference.dicom_export.parametric_map import write_parametric_map
from reshift.inference.dicom_export.seg import write_seg
from reshift.inference.dicom_export.sources import read_sources

hd = pytest.importorskip("highdicom")
TURN = cosines(0.3, -0.2, 0.1)
UPSIDE_DOWN = [1.0, 0.0, 0.0, 0.0, -1.0, 0.0]


def heat(shape: tuple[int, ...], seed: int = 3) -> NDArray[np.float32]:
    maps = np.random.default_rng(seed).random(shape).astype(np.float32)
    maps[..., :2, :] = np.nan  # what the crop did not look at
    return maps


def scan(kind: str, folder: Path) -> DicomVolume:
    if kind == "series":
        series(folder, 5, TURN)
        return read_series(folder)
    if kind == "reversed":  # canonical slices, rows and columns run against the file's
        series(folder, 4, UPSIDE_DOWN)
        return read_series(folder)
    read = read_dicom(write(enhanced((2, 0, 3, 1), TURN), folder / "e.dcm"))
    assert isinstance(read, DicomVolume)
    return read


def place(ds: Dataset, frame: int) -> list[float]:
    if "PerFrameFunctionalGroupsSequence" not in ds:
        return [float(v) for v in ds.ImagePositionPatient]
    return [float(v) for v in ds.PerFrameFunctionalGroupsSequence[frame].PlanePositionSequence[0].ImagePositionPatient]


def source_of(made: Dataset, frame: int) -> tuple[str, int]:
    """The instance and frame that a frame of a result says it was made from."""
    image = made.PerFrameFunctionalGroupsSequence[frame].DerivationImageSequence[0].SourceImageSequence[0]
    return image.ReferencedSOPInstanceUID, int(image.get("ReferencedFrameNumber", 1)) - 1


def by_place(made: Dataset) -> dict[tuple[float, ...], NDArray[Any]]:
    """Frames at one place are segments of a mask: anything in any of them."""
    found: dict[tuple[float, ...], NDArray[Any]] = {}
    for k, frame in enumerate(made.pixel_array.reshape(-1, made.Rows, made.Columns)):
        at = tuple(np.round(place(made, k), 4))
        found[at] = np.maximum(found.get(at, frame), frame)
    return found


@pytest.mark.parametrize("kind", ["series", "reversed", "enhanced"])
def test_mask_and_map_come_back_value_by_value(tmp_path: Path, kind: str) -> None:
    volume = scan(kind, tmp_path / "in")
    maps = heat(volume.voxels.shape)
    files = export_dicom(tmp_path / "out", read_sources(volume), volume, maps, 0.7)
    assert [f.name for f in files] == ["mask.dcm", "map.dcm", "report.dcm"] + [
        f"overlay-{k + 1:04d}.dcm" for k in range(len(volume))
    ]
    native = volume.to_native(maps)
    mask, raw = (pydicom.dcmread(tmp_path / "out" / name) for name in ("mask.dcm", "map.dcm"))
    assert mask.pixel_array.shape[1:] == raw.pixel_array.shape[1:] == native.shape[1:]
    assert raw.pixel_array.dtype == np.float32
    masks, values_ = by_place(mask), by_place(raw)
    for k, (path, frame) in enumerate(volume.frames):
        source = pydicom.dcmread(path)
        at = tuple(np.round(place(source, frame), 4))
        read = np.where(values_[at] == raw.FloatPixelPaddingValue, np.nan, values_[at])
        np.testing.assert_array_equal(read, native[k])  # bit for bit
        np.testing.assert_array_equal(masks[at], np.nan_to_num(native[k], nan=-1) > 0.7)
        for made in (mask, raw):
            own = [j for j in range(made.NumberOfFrames) if np.allclose(place(made, j), place(source, frame), atol=1e-4)]
            assert {source_of(made, j) for j in own} == {(source.SOPInstanceUID, frame)}


@pytest.mark.parametrize("kind", ["series", "enhanced"])
@pytest.mark.parametrize("name", ["mask.dcm", "map.dcm"])
def test_geometry_and_study_are_those_of_the_source(tmp_path: Path, kind: str, name: str) -> None:
    volume = scan(kind, tmp_path / "in")
    export_dicom(tmp_path / "out", read_sources(volume), volume, heat(volume.voxels.shape), 0.7)
    made = pydicom.dcmread(tmp_path / "out" / name)
    shared = made.SharedFunctionalGroupsSequence[0]
    assert [float(v) for v in shared.PixelMeasuresSequence[0].PixelSpacing] == [0.8, 0.6]
    assert float(shared.PixelMeasuresSequence[0].SliceThickness) == 2.5
    np.testing.assert_allclose([float(v) for v in shared.PlaneOrientationSequence[0].ImageOrientationPatient], TURN, atol=1e-9)
    assert (made.StudyInstanceUID, made.FrameOfReferenceUID) == (STUDY_UID, FRAME_UID)
    assert made.SeriesInstanceUID != SERIES_UID
    assert made.SeriesDescription == {"mask.dcm": "Reshift anomaly mask", "map.dcm": "Reshift anomaly map"}[name]
    assert {tag: str(made[tag].value) for tag in PATIENT} == PATIENT
    again = read_sources(volume)  # the headers that go in are not changed
    assert again[0].SeriesInstanceUID == SERIES_UID


@pytest.mark.parametrize("kind", ["series", "reversed"])
def test_highdicom_finds_the_map_where_the_scan_is(tmp_path: Path, kind: str) -> None:
    """Another reader's affines (LPS) of the scan and of the map, and its own way of laying one over the other."""
    volume = scan(kind, tmp_path / "in")
    maps = np.nan_to_num(heat(volume.voxels.shape))
    export_dicom(tmp_path / "out", read_sources(volume), volume, maps, 0.7)
    theirs = hd.get_volume_from_series([pydicom.dcmread(path) for path, _ in volume.frames])
    laid = hd.imread(tmp_path / "out" / "map.dcm").get_volume().match_geometry(theirs)
    ours = hd.Volume(volume.to_native(maps), np.diag([-1, -1, 1, 1]) @ volume.native_affine, coordinate_system="PATIENT")
    np.testing.assert_array_equal(laid.array, ours.match_geometry(theirs).array)
    np.testing.assert_allclose(laid.affine, theirs.affine, atol=1e-4)


def test_the_segment_and_the_unit(tmp_path: Path) -> None:
    volume = scan("series", tmp_path / "in")
    export_dicom(tmp_path / "out", read_sources(volume), volume, heat(volume.voxels.shape), 0.7)
    seg = hd.seg.segread(tmp_path / "out" / "mask.dcm")
    segment = seg.SegmentSequence[0]
    assert (seg.SegmentationType, segment.SegmentLabel, segment.SegmentAlgorithmType) == ("BINARY", "Finding 1", "AUTOMATIC")
    assert segment.SegmentationAlgorithmIdentificationSequence[0].AlgorithmName == "Reshift"
    order = [source.SOPInstanceUID for source in read_sources(volume)]
    stacked = seg.get_pixels_by_source_instance(order, combine_segments=True)  # as another reader sees it
    np.testing.assert_array_equal(stacked > 0, np.nan_to_num(volume.to_native(heat(volume.voxels.shape)), nan=-1) > 0.7)
    [mapping] = pydicom.dcmread(tmp_path / "out" / "map.dcm").SharedFunctionalGroupsSequence[0].RealWorldValueMappingSequence
    assert (mapping.RealWorldValueSlope, mapping.RealWorldValueIntercept) == (1.0, 0.0)
    assert mapping.MeasurementUnitsCodeSequence[0].CodeValue == "1"


def test_overlays(tmp_path: Path) -> None:
    volume = scan("enhanced", tmp_path / "in")
    maps = np.full(volume.voxels.shape, 0.1, dtype=np.float32)
    maps[2, 5:9, 5:9] = 0.9
    files = export_dicom(tmp_path / "out", read_sources(volume), volume, maps, 0.7)
    assert [f.name for f in files[3:]] == ["overlay-0003.dcm"]  # only where there is something to see
    made = pydicom.dcmread(files[3])
    [source] = made.SourceImageSequence
    assert (made.PhotometricInterpretation, source.ReferencedFrameNumber) == ("RGB", volume.frames[2][1] + 1)
    pixels = made.pixel_array
    assert pixels.shape == (24, 20, 3)
    hot = volume.to_native(maps)[2] > 0.7
    assert np.ptp(pixels[hot].astype(int), axis=-1).min() > np.ptp(pixels[~hot].astype(int), axis=-1).max()  # colour, on grey
    assert [float(v) for v in made.PixelSpacing] == [0.8, 0.6]
    assert list(made.PatientOrientation) == ["L", "P"]
    assert made.StudyInstanceUID == STUDY_UID
    maps[2] = 0.1
    maps[1, 3, 3] = 0.2
    files = export_dicom(tmp_path / "calm", read_sources(volume), volume, maps, 0.7)
    assert [f.name for f in files[3:]] == ["overlay-0002.dcm"]  # nothing found: the slice that comes nearest
    assert not pydicom.dcmread(files[0]).pixel_array.any()


@pytest.mark.parametrize("placed", [True, False])
def test_a_single_image(tmp_path: Path, placed: bool) -> None:
    ds = ct(values()) if placed else grey(values(), stored=12)
    image = read_dicom(write(ds, tmp_path / "a.dcm"))
    maps = heat((24, 20))
    files = export_dicom(tmp_path / "out", read_sources(image), image, maps, 0.7)
    assert [f.name for f in files] == ["mask.dcm", *["map.dcm"] * placed, "report.dcm", "overlay-0001.dcm"]
    frames = pydicom.dcmread(files[0]).pixel_array.reshape(-1, 24, 20)
    np.testing.assert_array_equal(frames.max(axis=0), np.nan_to_num(maps, nan=-1) > 0.7)
    assert source_of(pydicom.dcmread(files[0]), 0) == (ds.SOPInstanceUID, 0)


def test_foreign_names_survive(tmp_path: Path) -> None:
    series(tmp_path / "in", 2, SpecificCharacterSet="ISO_IR 100", PatientName="Müller^Jörg")
    volume = read_series(tmp_path / "in")
    for path in export_dicom(tmp_path / "out", read_sources(volume), volume, heat(volume.voxels.shape), 0.7):
        assert str(pydicom.dcmread(path).PatientName) == "Müller^Jörg"


@pytest.mark.parametrize(
    ("tag", "given", "kept"),
    [
        ("PatientBirthDate", "20000229", "20000229"),
        ("PatientBirthDate", "20010229", ""),
        ("StudyDate", "unknown", ""),
        ("StudyTime", "235959.123", "235959.123"),
        ("StudyTime", "25:00", ""),
        ("PatientSex", "F", "F"),
        ("PatientSex", "U", ""),
    ],
)
def test_values_that_writers_refuse_are_left_empty(tmp_path: Path, tag: str, given: str, kept: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        image = read_dicom(write(ct(values(), **{tag: given}), tmp_path / "a.dcm"))
    for path in export_dicom(tmp_path / "out", read_sources(image), image, heat((24, 20)), 0.7):
        made = pydicom.dcmread(path)
        assert str(made[tag].value or "") == kept
        assert made.PatientID == PATIENT["PatientID"]


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tag", ["StudyInstanceUID", "SOPClassUID", "FrameOfReferenceUID", "Modality"])
def test_a_tag_that_results_need(tmp_path: Path, tag: str) -> None:
    series(tmp_path / "in", 3, **{tag: None})
    volume = read_series(tmp_path / "in")
    with pytest.raises(UserError, match=f"has no {tag}") as err:
        export_dicom(tmp_path / "out", read_sources(volume), volume, heat(volume.voxels.shape), 0.7)
    assert "\n" not in str(err.value)


@pytest.mark.parametrize("tag", ["SliceThickness", "PatientName", "PatientID", "AccessionNumber", "InstanceNumber", "ImageType"])
def test_a_tag_that_results_do_without(tmp_path: Path, tag: str) -> None:
    series(tmp_path / "in", 3, **{tag: None})
    volume = read_series(tmp_path / "in")
    [mask, *_] = export_dicom(tmp_path / "out", read_sources(volume), volume, heat(volume.voxels.shape), 0.7)
    assert float(pydicom.dcmread(mask).SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].SliceThickness) == 2.5


def test_the_wrong_number_of_planes_is_one_line(tmp_path: Path) -> None:
    volume = scan("series", tmp_path / "in")
    identity, planes = Identity(("1.2",), "model"), np.zeros((3, 24, 20))
    with pytest.raises(UserError, match="could not be made"):
        write_seg(tmp_path / "a.dcm", read_sources(volume), planes.astype(np.uint8), ["Anomaly"], identity)
    with pytest.raises(UserError, match="could not be made"):
        write_parametric_map(tmp_path / "a.dcm", read_sources(volume), planes.astype(np.float32), identity)
    assert not (tmp_path / "a.dcm").exists()


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = scan("series", tmp_path / "in")
    monkeypatch.setitem(sys.modules, "highdicom", None)
    with pytest.raises(UserError, match=r"pip install 'reshift\[dicom\]'"):
        export_dicom(tmp_path / "out", read_sources(volume), volume, heat(volume.voxels.shape), 0.7)


def test_nothing_of_the_patient_leaves_the_dicom_files(tmp_path: Path) -> None:
    """Names of files, lines of errors and whatever the libraries print: in a process of its own, with every warning on."""
    warnings.filterwarnings("ignore", module="pydicom")  # of the odd values written here
    series(tmp_path / "good", 3, PatientName=f"{SECRETS[0]}=x=y=z=", PatientAge="old", StudyDate="soon", StudyID=SECRETS[1])
    series(tmp_path / "bad", 3, Modality=None, StudyDate="Okonkwo")
    series(tmp_path / "odd", 3, SpecificCharacterSet="latin_1")
    for path in (tmp_path / "odd").iterdir():  # pydicom warns of an unknown encoding, and quotes it
        path.write_bytes(path.read_bytes().replace(b"latin_1", b"Okonkwo"))
    write(ct(values(), Rows=None, PatientSex=SECRETS[1]), tmp_path / "bad.dcm")
    code = f"""
import numpy as np
from pathlib import Path
from reshift.data.dicom.series import find_series, read_dicom, read_series
from reshift.inference.dicom_export.export import export_dicom
from reshift.inference.dicom_export.sources import read_sources
from reshift.errors import UserError
root = Path({str(tmp_path)!r})
print(*find_series(root / "good").series)
for folder in ("good", "bad", "odd"):
    try:
        volume = read_series(root / folder)
        print(volume.notes, export_dicom(root / f"out-{{folder}}", read_sources(volume), volume, np.ones((3, 24, 20), "f4"), 0.7))
    except UserError as err:
        print(err)
try:
    read_dicom(root / "bad.dcm")
except UserError as err:
    print(err)
"""
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "out-good/overlay-0003.dcm" in done.stdout
    assert "has no Modality" in done.stdout
    said = done.stdout + done.stderr + "".join(str(p) for p in tmp_path.rglob("*"))
    assert not any(part in said for secret in SECRETS for part in secret.split("^"))


def test_nothing_of_the_patient_is_in_scores_maps_or_overlays(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    series(tmp_path / "in" / "scan", 3)
    write(grey(values(), stored=12, SeriesInstanceUID="1.2.4"), tmp_path / "in" / "film.dcm")
    write(grey(values(), stored=12, SeriesInstanceUID="1.2.5", PixelData=None), tmp_path / "in" / "bad.dcm")
    done = run_cli("score", tiny_bundle, tmp_path / "in", "--out", tmp_path / "out")
    assert done.code == 3  # one of them has no pixels
    records = [json.loads(line) for line in (tmp_path / "out" / "scores.jsonl").read_text().splitlines()]
    assert {Path(record["input"]).name for record in records if record["error"] is None} == {"scan", "film.dcm"}
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    said = [done.out.encode(), done.err.encode(), *(str(path).encode() for path in files), *(path.read_bytes() for path in files)]
    said += [gzip.decompress(path.read_bytes()) for path in files if path.suffix == ".gz"]
    assert len(files) >= 6
    assert not any(part.encode() in text for text in said for secret in SECRETS for part in secret.split("^"))
