"""All DICOM results of one case, or none of them."""

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.dicom.series import DicomVolume
from reshift.data.image import Image
from reshift.errors import UserError
from reshift.inference.dicom_export.capture import write_secondary_capture
from reshift.inference.dicom_export.identity import Identity, identity_of
from reshift.inference.dicom_export.parametric_map import write_parametric_map
from reshift.inference.dicom_export.report import write_report
from reshift.inference.dicom_export.seg import REST, write_seg
from reshift.inference.dicom_export.sources import is_placed, read_sources
from reshift.inference.findings.measure import MIN_DIAMETER, Found, find
from reshift.inference.findings.regions import paint
from reshift.inference.findings.space import image_space, volume_space
from reshift.inference.outputs import KINDS
from reshift.inference.overlay import overlay
from reshift.system.files import writing

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

    from reshift.inference.dicom_export.anonymise import Key

ASIDE = ".unfinished"  # folder for results until all of them are written
FILES = ("mask.dcm", "map.dcm", "report.dcm", "overlay-*.dcm")


class Setup(NamedTuple):
    """What stays the same over all cases of a run."""

    threshold: float
    scale: float  # the map value of full colour in overlays
    model: str  # hash of weights, settings and calibration
    min_diameter: float = MIN_DIAMETER
    key: "Key | None" = None  # of an anonymised export
    kinds: tuple[str, ...] = KINDS  # which results are made


class Result(NamedTuple):
    """A case: what was found in it."""

    original: DicomVolume | Image
    maps: NDArray[np.float32]  # canonical (S, H, W) for a volume, (H, W) for an image
    found: Found | None  # None where too much is above the threshold to tell findings apart
    case: Mapping[str, Any]  # score and p_value, if known


def export_result(folder: Path, result: Result, setup: Setup) -> str | None:
    """Write what a PACS takes into ``folder``, all of it referring to the source images.

    Many files lack what DICOM requires of a result. That loses the result, never the score: the reason is returned.
    """
    original = result.original
    try:
        sources = read_sources(original)
        if setup.key is not None:
            sources = setup.key.anonymise(sources)
        _export(folder, sources, result, setup)
    except UserError as err:
        return str(err)
    except Exception as err:  # a source can hold anything, and what the error quotes may be about the patient
        return f"{original.source}: no DICOM result could be made of it ({type(err).__name__}); leave out DICOM results for it"
    return None


def export_dicom(
    out: Path,
    sources: "Sequence[Dataset]",
    original: DicomVolume | Image,
    maps: NDArray[np.float32],
    threshold: float,
    scale: float | None = None,
    *,
    model: str | None = None,
    min_diameter: float = MIN_DIAMETER,
) -> list[Path]:
    """Write all results into ``out`` and return the files: ``mask.dcm``, ``map.dcm`` (of placed scans), ``report.dcm``, overlays.

    ``maps`` is canonical ``(S, H, W)`` for a volume, ``(H, W)`` for an image. ``scale`` is the map value of full colour in the
    overlays, twice the threshold unless given. Overlays are written for slices with anything above the threshold, or for the
    one with the highest value. UIDs follow from the sources and ``model``, which names what made the maps (default: the maps).
    """
    volume = isinstance(original, DicomVolume)
    space = volume_space(original) if isinstance(original, DicomVolume) else image_space(original.source)
    found = find(list(enumerate(maps if volume else maps[None])), threshold, space, min_diameter)
    named = model if model is not None else hashlib.sha256(maps.tobytes()).hexdigest()
    setup = Setup(threshold, scale or 2.0 * threshold, named, min_diameter)
    return _export(out, sources, Result(original, maps, found, {}), setup)


def _export(out: Path, sources: "Sequence[Dataset]", result: Result, setup: Setup) -> list[Path]:
    with _all_or_none(out) as aside:
        names = [path.name for path in _write_results(aside, sources, result, setup)]
    return [out / name for name in names]


@contextmanager
def _all_or_none(out: Path) -> Iterator[Path]:
    """A folder to write in, whose files go to ``out`` at the end. A refusal leaves none, also none of an earlier run."""
    aside = out / ASIDE
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)  # left by a killed run
        aside.mkdir()
        for old in (old for pattern in FILES for old in out.glob(pattern)):
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


def _write_results(out: Path, sources: "Sequence[Dataset]", result: Result, setup: Setup) -> list[Path]:
    original, volume = result.original, isinstance(result.original, DicomVolume)
    placed = all(is_placed(source) for source in sources)
    if volume and not placed:
        raise UserError(
            f"{original.source}: has no FrameOfReferenceUID, which DICOM results need; leave them out, or export it again"
        )
    settings = f"{setup.threshold} {setup.scale} {setup.min_diameter}"
    identity = identity_of(sources, setup.model, settings, anonymised=setup.key is not None)
    native = _native(original, result.maps).astype(np.float32, copy=False)
    written, mask = list[Path](), None
    if "mask" in setup.kinds:
        segments, labels = _segments(result, native, setup.threshold)
        mask = write_seg(out / "mask.dcm", sources, _filed(original, sources, segments, np.uint8(0)), labels, identity)
        written.append(out / "mask.dcm")
    if "map" in setup.kinds and placed:  # a parametric map of a plain radiograph is not something DICOM knows
        write_parametric_map(out / "map.dcm", sources, _filed(original, sources, native, np.float32(np.nan)), identity)
        written.append(out / "map.dcm")
    if "report" in setup.kinds and mask is not None:  # it points at the mask
        findings = result.found.findings if result.found else []
        write_report(out / "report.dcm", sources, mask, findings, result.case, identity)
        written.append(out / "report.dcm")
    shown = setup.key is None or all(source.get("BurnedInAnnotation") == "NO" for source in sources)
    if "overlay" in setup.kinds and shown:
        written += _overlays(out, sources, original, native, setup, identity)
    return written


def _segments(result: Result, native: NDArray[np.float32], threshold: float) -> tuple[NDArray[np.uint8], list[str]]:
    """Segment numbers on the native grid, and the segments' labels: one per finding; the last is whatever is in none of them."""
    regions = result.found.regions if result.found else []
    maps = result.maps if result.maps.ndim == 3 else result.maps[None]
    segments = np.ascontiguousarray(_native(result.original, paint(regions, maps.shape)))
    labels, number, more = [f"Finding {i}" for i in range(1, len(regions) + 1)], len(regions) + 1, not regions
    for values, plane in zip(native, segments, strict=True):
        rest = (values > threshold) & (plane == 0)  # NaN, outside the crop, is above nothing
        if rest.any():
            plane[rest], more = number, True
    return segments, [*labels, REST] if more else labels


def _overlays(
    out: Path,
    sources: "Sequence[Dataset]",
    original: DicomVolume | Image,
    native: NDArray[np.float32],
    setup: Setup,
    identity: Identity,
) -> list[Path]:
    hot = [k for k, plane in enumerate(native) if (plane > setup.threshold).any()]
    if not hot and np.isfinite(native).any():
        hot = [int(np.unravel_index(np.nanargmax(native), native.shape)[0])]
    places, written = _places(original, sources), list[Path]()
    for k in hot:
        rgb = overlay(_shown(original, k), native[k], setup.threshold, setup.scale)
        source, frame = (sources[k], 0) if len(sources) > 1 else (sources[0], places[k])
        written.append(out / f"overlay-{k + 1:04d}.dcm")
        write_secondary_capture(written[-1], source, rgb, identity, frame, k + 1)
    return written


def _native(original: DicomVolume | Image, array: NDArray[Any]) -> NDArray[Any]:
    """Canonical planes, or one, on the file's own grid ``(S, H, W)``."""
    return original.to_native(array) if isinstance(original, DicomVolume) else array.reshape(1, *array.shape[-2:])


def _filed(original: DicomVolume | Image, sources: "Sequence[Dataset]", native: NDArray[Any], empty: Any) -> NDArray[Any]:
    """Planes in the order of the sources or their frames; a frame that was left out is ``empty``. One plane for an image."""
    if isinstance(original, Image):
        return np.asarray(native[0])
    frames = len(sources) if len(sources) > 1 else int(sources[0].get("NumberOfFrames", 1) or 1)
    if _places(original, sources) == list(range(frames)):
        return native
    filed = np.full((frames, *native.shape[1:]), empty, dtype=native.dtype)
    filed[_places(original, sources)] = native
    return filed


def _places(original: DicomVolume | Image, sources: "Sequence[Dataset]") -> list[int]:
    """For each slice along the native first axis, which plane of the sources it is."""
    if isinstance(original, Image):
        return [0]
    return [frame for _, frame in original.frames] if len(sources) == 1 else list(range(len(original.frames)))


def _shown(original: DicomVolume | Image, k: int) -> NDArray[np.float32]:
    """Grey values of native slice ``k`` within their window, ``(H, W, C)``."""
    if isinstance(original, Image):
        pixels = original.pixels.astype(np.float32)
        return pixels if original.window is None else np.clip(pixels, *original.window)
    real = original.to_native(original.voxels)[k].astype(np.float64) * original.slope + original.intercept
    return np.asarray(np.clip(real, *original.window)[:, :, None], dtype=np.float32)
