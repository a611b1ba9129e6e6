"""DICOM in: one file is an image (or, with many placed frames, a volume), a series is a volume.

Slices are ordered by where they lie, never by name or number. Nothing of the patient leaves the file.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.dicom.geometry import APART, PER_FRAME, SHARED, Plane, Stack, arrange, group, plane
from reshift.data.dicom.header import AGAIN, Header, is_dicom, read_header
from reshift.data.dicom.pixels import (
    GREY,
    MAX_VOXELS,
    Layout,
    Tone,
    decode,
    depth,
    frame_count,
    layout,
    modality,
    padding,
    picture,
    tone,
)
from reshift.data.image import Image
from reshift.data.volume import Volume, canonical
from reshift.errors import UserError

__all__ = ["DicomVolume", "Series", "find_series", "is_dicom", "read_dicom", "read_series"]

STACKED = ("CT", "MR", "PT")  # modalities whose series are volumes; where a slice lies must then be known
_LISTED = ("SOPClassUID", "SeriesInstanceUID", "Modality", "Rows", "ImagePositionPatient")
_HEADER = (
    *("SOPInstanceUID", "Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction"),
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness", "SpacingBetweenSlices"),
    *(PER_FRAME, SHARED),
    *APART,
)


@dataclass(frozen=True, eq=False)
class DicomVolume(Volume):
    """A volume that knows its files; its grey range is the window they all name, if they do."""

    shown: tuple[float, float] | None = None  # the window that every slice names
    notes: tuple[str, ...] = ()  # what is odd about the series, one line each
    frames: tuple[tuple[Path, int], ...] = ()  # file, and frame in it, of every slice along the native first axis

    @cached_property
    def window(self) -> tuple[float, float]:
        """The files' own window where all slices agree, else the range of the whole volume: never one per slice."""
        return self.shown or super().window


@dataclass(frozen=True)
class Series:
    """The files of one SeriesInstanceUID. A file that could not be read is a series of its own without a uid."""

    uid: str
    modality: str  # its DICOM code
    files: tuple[Path, ...]
    stacked: bool  # a volume for ``read_series``; otherwise separate images for ``read_dicom``
    folder: Path

    def __str__(self) -> str:
        return f"{self.modality} …{self.uid[-8:]} ({len(self.files)} file{'s'[: len(self.files) > 1]})"


def read_dicom(path: Path) -> Image | DicomVolume:
    """Read one file: an image, or a volume when it holds frames that each say where they lie."""
    header = read_header(path, pixels=True)
    frames = frame_count(header)
    if frames == 1:
        value, shown, measures = (group(header, 0, name) for name in (*_VALUES, "PixelMeasuresSequence"))
        return picture(header, value, shown, measures)
    layout(header)
    if header.item(PER_FRAME, 0) is None:
        what = f"holds {frames} frames that do not say where they lie (no {PER_FRAME})"
        raise UserError(f"{path}: {what}; a film is no volume, save every frame as a file of its own")
    return _volume(arrange([plane(header, k) for k in range(frames)], path), path, {path: header})


def read_series(series: Series | Path) -> DicomVolume:
    """Read a series, or the one series in a folder."""
    if isinstance(series, Path):
        series = _only(series)
    headers = [read_header(path, _HEADER) for path in series.files]
    planes = [plane(header, frame) for header in headers for frame in range(_frames(header))]
    return _volume(arrange(planes, series.folder), series.folder, {})


def find_series(folder: Path) -> list[Series]:
    """Every series of images under ``folder``, from headers alone; links to folders are not followed."""
    found: dict[str, list[Listed]] = defaultdict(list)
    damaged: list[Series] = []
    for path in _walk(folder):
        try:
            listed = _listed(path)
        except UserError:  # told when it is read; here it would stop all the others
            damaged.append(Series("", "", (path,), stacked=False, folder=path))
            continue
        if listed is not None:
            found[listed.uid].append(listed)
    return [_series(members, folder) for members in found.values()] + damaged


class Listed(NamedTuple):
    """What is kept of each file while a folder is listed; a header would be too much for many thousands."""

    path: Path
    uid: str
    modality: str
    placed: bool


def _listed(path: Path) -> Listed | None:
    """None for reports, plans and segmentations, which lie among the images."""
    from pydicom.uid import UID

    header = read_header(path, _LISTED)
    kind = UID("".join(header.words("SOPClassUID")))
    if not ("Image Storage" in kind.name if kind.name != kind else header.value("Rows") is not None):
        return None
    modality = "".join(header.words("Modality")[:1])
    modality = modality if modality.isalnum() and modality.isupper() and len(modality) <= 6 else "?"  # a code, or what was typed
    uid = "".join(header.words("SeriesInstanceUID")) or str(path)
    return Listed(path, uid, modality, header.value("ImagePositionPatient") is not None)


def _walk(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    paths: list[Path] = []
    for root, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths += [Path(root, name) for name in sorted(files) if not name.startswith(".")]
    return [path for path in paths if is_dicom(path)]


def _refuse(err: OSError) -> None:
    raise UserError(f"{err.filename}: cannot be listed ({err.strerror}); make it readable, or move it away") from err


def _series(members: Sequence[Listed], folder: Path) -> Series:
    kind, files = members[0].modality, tuple(member.path for member in members)
    placed = kind in STACKED or any(member.placed for member in members)
    return Series(members[0].uid, kind, files, stacked=placed and len(files) > 1, folder=folder)


def _only(folder: Path) -> Series:
    """The one series in ``folder``."""
    series = find_series(folder)
    for damaged in series:
        if not damaged.uid:
            read_dicom(damaged.files[0])  # says what is wrong with it
            raise UserError(f"{damaged.files[0]}: its header cannot be read; {AGAIN}")
    if not series:
        raise UserError(f"{folder}: no DICOM images in this folder")
    if len(series) > 1:
        listed = ", ".join(str(one) for one in series[:4]) + (", …" if len(series) > 4 else "")
        raise UserError(f"{folder}: holds {len(series)} series: {listed}; put each into a folder of its own")
    return series[0]


_VALUES = ("PixelValueTransformationSequence", "FrameVOILUTSequence")


def _frames(header: Header) -> int:
    """The number of frames, which must say where they lie; before that, the sizes are checked."""
    layout(header)
    count = frame_count(header)
    if count > 1 and header.item(PER_FRAME, 0) is None:
        raise UserError(f"{header.path}: holds {count} frames that do not say where they lie; give this file by itself")
    return count


def _volume(stack: Stack, source: Path, opened: dict[Path, Header]) -> DicomVolume:
    planes = stack.planes
    plan = _one_layout(planes, source)
    tones = [tone(p.header, *(group(p.header, p.frame, name) for name in _VALUES)) for p in planes]
    voxels, slope, intercept = _filled(planes, plan, tones, opened)
    windows = {t.window for t in tones}
    shown = windows.pop() if len(windows) == 1 else None
    if plan.dark < 0:
        slope, intercept, shown = -slope, -intercept, (-shown[1], -shown[0]) if shown else None
    plain = voxels.dtype.kind == "u" and (slope, intercept) == (1.0, 0.0)
    bits = depth(plan) if plain else 32  # real values have no stored range
    base = canonical(voxels, stack.affine, source=source, bits=bits, slope=slope, intercept=intercept)
    values: dict[str, Any] = {field.name: getattr(base, field.name) for field in fields(Volume)}
    return DicomVolume(**values, shown=shown, notes=stack.notes, frames=tuple((p.path, p.frame) for p in planes))


def _one_layout(planes: Sequence[Plane], source: Path) -> Layout:
    first = layout(planes[0].header)
    if first.photometric not in GREY:
        raise UserError(f"{source}: its slices are in colour (PhotometricInterpretation), which a volume cannot be")
    for p in planes:
        other = layout(p.header)
        tag = next((name for name, a, b in zip(_LAYOUT, first, other, strict=True) if a != b), None)
        if tag:
            raise UserError(f"{source}: {planes[0].path.name} and {p.path.name} differ in {tag}; keep one kind per folder")
    if first.rows * first.columns * len(planes) > MAX_VOXELS:
        size = f"{len(planes)} slices of {first.rows}×{first.columns}"
        raise UserError(f"{source}: {size}, over the limit of {MAX_VOXELS:,} voxels; refused unread, cut it into pieces")
    return first


_LAYOUT = (
    *("Rows", "Columns", "SamplesPerPixel", "BitsAllocated", "BitsStored", "PixelRepresentation"),
    "PhotometricInterpretation",
)


def _filled(
    planes: Sequence[Plane], plan: Layout, tones: Sequence[Tone], opened: dict[Path, Header]
) -> tuple[NDArray[Any], float, float]:
    """The voxels ``(S, H, W)`` as stored where one rescale holds for all slices, else real values; with their rescale."""
    linear = not any(p.header.item("ModalityLUTSequence", 0) for p in planes)
    stored = linear and len({(t.slope, t.intercept) for t in tones}) == 1
    slope, intercept = (tones[0].slope, tones[0].intercept) if stored else (1.0, 0.0)
    voxels: NDArray[Any] | None = None
    pads: list[tuple[int, NDArray[np.bool_]]] = []
    darkest = np.inf  # of what is not padding, on a scale where less is darker
    sign = plan.dark * np.sign(slope)
    for k, (p, t) in enumerate(zip(planes, tones, strict=True)):
        header = opened.get(p.path) or read_header(p.path, pixels=True)
        opened = {p.path: header}  # frames of one file follow one another, or all are in one
        layout(header)
        raw = decode(header, plan, p.frame)
        values = raw if stored else modality(header, t, raw).astype(np.float32)
        if voxels is None:
            voxels = np.empty((len(planes), plan.rows, plan.columns), dtype=values.dtype)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise UserError(f"{p.path}: contains NaN or infinite pixels; replace them before use")
        voxels[k] = values
        pad = padding(header, plan, raw)
        if pad.any():
            pads.append((k, pad))
        if not pad.all():
            darkest = min(darkest, float((values[~pad] * sign).min()))
    assert voxels is not None
    for k, pad in pads if np.isfinite(darkest) else ():
        voxels[k][pad] = darkest * sign
    return voxels, slope, intercept
