"""DICOM out: the mask as a segmentation, the map as a parametric map, overlays as secondary captures (extra ``dicom``).

All three refer to the images they were made from and belong to their study, so a PACS shows them beside the original. They
carry the patient and study modules, as DICOM demands, but not the source's equipment, station and institution; file names and
errors carry nothing of the patient. A case gets all of its files or none.
"""

import io
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reshift import __version__
from reshift.data.dicom.geometry import functional_group
from reshift.data.dicom.header import Header, silence_pydicom
from reshift.data.dicom.series import DicomVolume
from reshift.data.image import Image
from reshift.errors import UserError
from reshift.inference.calibration import Calibration
from reshift.inference.dicom_sources import patient_orientation, read_sources, reference
from reshift.inference.overlay import overlay
from reshift.system.files import atomic_bytes, writing

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

MAKER: dict[str, Any] = {
    "manufacturer": "Reshift",
    "manufacturer_model_name": "reshift",
    "software_versions": __version__,
    "device_serial_number": "0",
}
ASIDE = ".unfinished"  # folder for results until all of them are written
SERIES = {"mask": (9001, "Reshift anomaly mask"), "map": (9002, "Reshift anomaly map"), "overlay": (9003, "Reshift overlay")}


def export_result(
    folder: Path, source: DicomVolume | Image, heatmaps: NDArray[np.float32], calibration: Calibration
) -> str | None:
    """Write what a PACS takes: the thresholded map, the map itself, and overlays, all referring to the source images.

    Many files lack what DICOM requires of a result. That loses the result, never the score: the reason is returned.
    """
    threshold, scale = calibration.reference.pixel_threshold, calibration.heat_scale
    try:
        export_dicom(folder, read_sources(source), source, heatmaps, threshold, scale)
    except UserError as err:
        return str(err)
    except Exception as err:  # a source can hold anything, and what the error quotes may be about the patient
        return f"{source.source}: no DICOM result could be made of it ({type(err).__name__}); leave out DICOM results for it"
    return None


def write_seg(path: Path, sources: "Sequence[Dataset]", mask: NDArray[np.bool_]) -> None:
    """Write ``mask`` (one plane per source, or per frame of the one source) as a binary segmentation, segment "Anomaly"."""
    with _writing(path):
        import highdicom as hd
        from pydicom.sr.codedict import codes

        algorithm = hd.AlgorithmIdentificationSequence("Reshift", codes.DCM.ArtificialIntelligence, __version__)
        segment = hd.seg.SegmentDescription(
            segment_number=1,
            segment_label="Anomaly",
            segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
            segmented_property_type=codes.SCT.Lesion,
            algorithm_type=hd.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
            algorithm_identification=algorithm,
        )
        made = hd.seg.Segmentation(
            source_images=sources,
            pixel_array=mask.astype(np.uint8),
            segmentation_type=hd.seg.SegmentationTypeValues.BINARY,
            segment_descriptions=[segment],
            omit_empty_frames=False,  # one frame per slice, whether anything was found on it or not
            **_identity("mask"),
            **MAKER,
        )
    _save(path, made)


def write_parametric_map(path: Path, sources: "Sequence[Dataset]", values: NDArray[np.float32]) -> None:
    """Write ``values`` (planes as for ``write_seg``) as they are, in float32. NaN, outside the crop, becomes padding."""
    with _writing(path):
        import highdicom as hd
        from pydicom.sr.codedict import codes

        known = np.isfinite(values)
        low, high = (float(values[known].min()), float(values[known].max())) if known.any() else (0.0, 0.0)
        pad = min(-1.0, float(np.nextafter(np.float32(low), np.float32(-np.inf))))  # below every value
        mapping = hd.pm.RealWorldValueMapping("ANOMALY", "Anomaly score", codes.UCUM.NoUnits, (low, high), 1.0, 0.0)
        width = max(high - low, 1e-6)  # LINEAR counts whole grey levels and needs a width of at least 1
        shown = hd.VOILUTTransformation((low + high) / 2, width, voi_lut_function="LINEAR_EXACT")
        made = hd.pm.ParametricMap(
            source_images=sources,
            pixel_array=np.where(known, values, np.float32(pad)).astype(np.float32),
            real_world_value_mappings=[mapping],
            voi_lut_transformations=[shown],
            contains_recognizable_visual_features=False,
            **_identity("map"),
            **MAKER,
        )
        if not known.all():
            made.FloatPixelPaddingValue = made.FloatPixelPaddingRangeLimit = pad
    _save(path, made)


def write_secondary_capture(
    path: Path, source: "Dataset", rgb: NDArray[np.uint8], frame: int = 0, number: int = 1, series_uid: str | None = None
) -> None:
    """Write ``rgb`` (H, W, 3) as an image that any viewer shows; ``series_uid`` keeps several in one series."""
    with _writing(path):
        import highdicom as hd
        from pydicom.uid import ExplicitVRLittleEndian

        header = Header(path, source)
        spacing = functional_group(header, frame, "PixelMeasuresSequence").numbers("PixelSpacing", 2)
        identity = {**_identity("overlay"), "instance_number": number}
        made = hd.sc.SCImage.from_ref_dataset(
            source,
            pixel_array=np.ascontiguousarray(rgb),
            photometric_interpretation="RGB",
            bits_allocated=8,
            coordinate_system="PATIENT",
            patient_orientation=("L", "F"),  # it asks for one, and a plain radiograph may have none: set below
            pixel_spacing=(spacing[0], spacing[1]) if spacing else None,  # type: ignore[arg-type]
            transfer_syntax_uid=ExplicitVRLittleEndian,
            **(identity | ({"series_instance_uid": series_uid} if series_uid else {})),
            **MAKER,
        )
        made.PatientOrientation = patient_orientation(header, frame)
        made.pop("BurnedInAnnotation", None)
        if (burned_in := header.words("BurnedInAnnotation")) in (("YES",), ("NO",)):  # of anything else we know nothing
            made.BurnedInAnnotation = burned_in[0]
        made.ImageType = ["DERIVED", "SECONDARY", "OVERLAY"]
        made.SourceImageSequence = [reference(source, frame)]
    _save(path, made)


def export_dicom(
    out: Path,
    sources: "Sequence[Dataset]",
    original: DicomVolume | Image,
    maps: NDArray[np.float32],
    threshold: float,
    scale: float | None = None,
) -> list[Path]:
    """Write all three into ``out`` and return the files: ``mask.dcm``, ``map.dcm`` (of placed scans), ``overlay-0001.dcm`` ….

    ``maps`` is canonical ``(S, H, W)`` for a volume, ``(H, W)`` for an image. ``scale`` is the map value of full colour in the
    overlays, twice the threshold unless given. Overlays are written for slices with anything above the threshold, or for the
    one with the highest value.
    """
    with _all_or_none(out) as aside:
        names = [path.name for path in _write_results(aside, sources, original, maps, threshold, scale)]
    return [out / name for name in names]


@contextmanager
def _all_or_none(out: Path) -> Iterator[Path]:
    """A folder to write in, whose files go to ``out`` at the end. A refusal leaves none, also none of an earlier run."""
    aside = out / ASIDE
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)  # left by a killed run
        aside.mkdir()
        for old in (old for pattern in ("mask.dcm", "map.dcm", "overlay-*.dcm") for old in out.glob(pattern)):
            old.unlink()
    try:
        yield aside
        with writing(out):
            for path in sorted(aside.iterdir()):
                path.replace(out / path.name)
    except UserError as err:
        raise UserError(str(err).replace(str(aside), str(out))) from err
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(OSError):  # it holds the results
            out.rmdir()


def _write_results(
    out: Path,
    sources: "Sequence[Dataset]",
    original: DicomVolume | Image,
    maps: NDArray[np.float32],
    threshold: float,
    scale: float | None,
) -> list[Path]:
    volume, placed = isinstance(original, DicomVolume), all("FrameOfReferenceUID" in source for source in sources)
    if volume and not placed:
        raise UserError(
            f"{original.source}: has no FrameOfReferenceUID, which DICOM results need; leave them out, or export it again"
        )
    native = np.asarray(original.to_native(maps) if isinstance(original, DicomVolume) else maps[None], dtype=np.float32)
    filed = np.full((_frames(sources), *native.shape[1:]), np.nan, dtype=np.float32)  # a frame that was left out has no values
    filed[_places(original, sources)] = native
    filed = filed if volume else filed[0]
    write_seg(out / "mask.dcm", sources, _above(filed, threshold))
    written = [out / "mask.dcm"]
    if placed:  # a parametric map of a plain radiograph is not something DICOM knows
        write_parametric_map(out / "map.dcm", sources, filed)
        written.append(out / "map.dcm")
    return written + _overlays(out, sources, original, native, threshold, scale or 2.0 * threshold)


def _overlays(
    out: Path,
    sources: "Sequence[Dataset]",
    original: DicomVolume | Image,
    native: NDArray[np.float32],
    threshold: float,
    scale: float,
) -> list[Path]:
    hot = [k for k, plane in enumerate(native) if _above(plane, threshold).any()]
    if not hot and np.isfinite(native).any():
        hot = [int(np.unravel_index(np.nanargmax(native), native.shape)[0])]
    places, series, written = _places(original, sources), _identity("overlay")["series_instance_uid"], list[Path]()
    for k in hot:
        rgb = overlay(_shown(original, k), native[k], scale)
        source, frame = (sources[k], 0) if len(sources) > 1 else (sources[0], places[k])
        written.append(out / f"overlay-{k + 1:04d}.dcm")
        write_secondary_capture(written[-1], source, rgb, frame, k + 1, series)
    return written


def _above(values: NDArray[np.float32], threshold: float) -> NDArray[np.bool_]:
    """NaN lies outside the crop and is above nothing."""
    return np.nan_to_num(values, nan=-np.inf) > threshold


def _frames(sources: "Sequence[Dataset]") -> int:
    return len(sources) if len(sources) > 1 else int(sources[0].get("NumberOfFrames", 1) or 1)


def _places(original: DicomVolume | Image, sources: "Sequence[Dataset]") -> list[int]:
    """For each slice along the native first axis, which plane of the sources it is."""
    if isinstance(original, Image):
        return [0]
    return [frame for _, frame in original.frames] if len(sources) == 1 else list(range(len(original.frames)))


def _shown(original: DicomVolume | Image, k: int) -> NDArray[np.float32]:
    """Grey values of native slice ``k`` within their window, ``(H, W, C)``."""
    if isinstance(original, Image):
        return original.pixels if original.window is None else np.clip(original.pixels, *original.window)
    real = original.to_native(original.voxels)[k].astype(np.float64) * original.slope + original.intercept
    return np.asarray(np.clip(real, *original.window)[:, :, None], dtype=np.float32)


def _identity(kind: str) -> dict[str, Any]:
    from pydicom.uid import generate_uid

    number, description = SERIES[kind]
    uids = {"series_instance_uid": generate_uid(), "sop_instance_uid": generate_uid()}
    return {**uids, "series_number": number, "series_description": description, "instance_number": 1}


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A tag that highdicom misses in the sources becomes one line with its name; values are never quoted."""
    from pydicom.config import disable_value_validation

    silence_pydicom()
    try:
        with disable_value_validation():  # values of the source are passed on unchanged
            yield
    except UserError:
        raise
    except ImportError:
        raise UserError("DICOM results need the extra 'dicom'; run pip install 'reshift[dicom]'") from None
    except Exception as err:
        from pydicom.datadict import tag_for_keyword

        name = getattr(err, "name", None)
        why = f"its source has no {name}" if name and tag_for_keyword(name) else f"its source is not usable, {type(err).__name__}"
        raise UserError(f"{path}: could not be made ({why}); leave out DICOM results for it") from None


def _save(path: Path, made: "Dataset") -> None:
    from pydicom.sr.codedict import codes

    buffer = io.BytesIO()
    with _writing(path):
        acquisition = codes.DCM.AcquisitionEquipment.value
        made.ContributingEquipmentSequence = [  # highdicom adds the scanner, with its station and institution
            item
            for item in made.get("ContributingEquipmentSequence", ())
            if item.PurposeOfReferenceCodeSequence[0].CodeValue != acquisition
        ]
        made.save_as(buffer, enforce_file_format=True)
    atomic_bytes(path, buffer.getvalue())
