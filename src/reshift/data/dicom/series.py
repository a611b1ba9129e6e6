"""Read DICOM: a file is an image (or a volume, if it has many frames with positions); a series is a volume.

Slices are ordered by position, never by name or number. Nothing about the patient leaves the file.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.dicom.decode import time_limit
from reshift.data.dicom.geometry import (
    DISTINGUISHING_TAGS,
    PER_FRAME,
    SHARED,
    Plane,
    Stack,
    functional_group,
    plane,
    stack_planes,
)
from reshift.data.dicom.header import DAMAGED, Header, is_dicom, read_header, user_errors
from reshift.data.dicom.layout import GREY, MAX_VOXELS, PixelLayout, bit_depth, frame_count, pixel_layout
from reshift.data.dicom.pixels import GreyScale, decode, frame_image, grey_scale, padding_mask, to_real_values
from reshift.data.files import list_files
from reshift.data.image import MAX_PIXELS, Image
from reshift.data.volume import Volume, canonical
from reshift.errors import UserError

VOLUME_MODALITIES = ("CT", "MR", "PT")  # their series are volumes, so every slice needs a position
_LISTING_TAGS = ("SOPClassUID", "SeriesInstanceUID", "Modality", "Rows", "ImagePositionPatient")
_VOLUME_TAGS = (
    *("SOPInstanceUID", "Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction"),
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness", "SpacingBetweenSlices"),
    *(PER_FRAME, SHARED),
    *DISTINGUISHING_TAGS,
)


@dataclass(frozen=True, eq=False)
class DicomVolume(Volume):
    """A volume with its files. Its grey range is the window of the files, if all slices have the same."""

    voi_window: tuple[float, float] | None = None  # the window of every slice
    notes: tuple[str, ...] = ()  # what is unusual about the series, one line each
    frames: tuple[tuple[Path, int], ...] = ()  # file, and frame in it, of every slice along the native first axis

    @cached_property
    def window(self) -> tuple[float, float]:
        """The files' own window if all slices agree, else the range of the whole volume; never one per slice."""
        return self.voi_window or super().window


@dataclass(frozen=True)
class Series:
    """The files of one SeriesInstanceUID."""

    uid: str
    modality: str  # DICOM's code
    files: tuple[Path, ...]
    stacked: bool  # a volume for ``read_series``; otherwise separate images for ``read_dicom``
    folder: Path

    @property
    def name(self) -> str:
        """Modality and a hash of the whole uid: series of one scanner share most of it, and it may hold any bytes."""
        return f"{self.modality}-{hashlib.sha256(self.uid.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"

    def __str__(self) -> str:
        return f"{self.name} ({len(self.files)} file{'s'[: len(self.files) > 1]})"


class Found(NamedTuple):
    """What the files of a folder are; every file is in one of these."""

    series: list[Series]
    damaged: list[Path]  # DICOM by name or preamble, but the header cannot be read
    without_image: int  # DICOM files: reports, plans, segmentations, DICOMDIR
    not_dicom: int


def read_dicom(path: Path, max_pixels: int = MAX_PIXELS) -> Image | DicomVolume:
    """Read one file: an image of up to ``max_pixels``, or a volume if it has several frames with positions."""
    header = read_header(path, pixels=True)
    frames = frame_count(header)
    if frames == 1:
        rescale, voi, measures = (functional_group(header, 0, name) for name in (*_VALUE_GROUPS, "PixelMeasuresSequence"))
        return frame_image(header, rescale, voi, measures, max_pixels)
    pixel_layout(header)
    if header.item(PER_FRAME, 0) is None:
        what = f"holds {frames} frames without positions (no {PER_FRAME})"
        raise UserError(f"{path}: {what}; a film is not a volume, save every frame as a separate file")
    return _volume(stack_planes([plane(header, k) for k in range(frames)], path), path, {path: header})


def read_series(series: Series | Path) -> DicomVolume:
    """Read a series, or the one series in a folder."""
    if isinstance(series, Path):
        series = _single_series(series)
    headers = [read_header(path, _VOLUME_TAGS) for path in series.files]
    planes = [plane(header, frame) for header in headers for frame in range(_frames(header))]
    return _volume(stack_planes(planes, series.folder), series.folder, {})


def find_series(folder: Path, files: Sequence[Path] | None = None) -> Found:
    """Every series of images among ``files`` (all under ``folder``, if not given), from headers alone."""
    found: dict[str, list[FileInfo]] = defaultdict(list)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    files = list_files(folder) if files is None else files
    dicom, damaged, without_image = [path for path in files if is_dicom(path)], list[Path](), 0
    for path in dicom:
        try:
            info = _file_info(path)
        except UserError:  # reported when it is read; here it would stop all the others
            damaged.append(path)
            continue
        if info is None:
            without_image += 1
        else:
            found[info.uid].append(info)
    return Found([_series(members, folder) for members in found.values()], damaged, without_image, len(files) - len(dicom))


class FileInfo(NamedTuple):
    """What is kept of each file while a folder is listed; whole headers would need too much memory."""

    path: Path
    uid: str
    modality: str
    has_position: bool


def _file_info(path: Path) -> FileInfo | None:
    """None for reports, plans and segmentations, which may be among the images. A file cut before its series is damaged."""
    from pydicom.uid import UID

    header = read_header(path, _LISTING_TAGS)
    with user_errors(path):
        own = header.words("SOPClassUID")
        kind = UID("".join(own or Header(path, header.tags.file_meta).words("MediaStorageSOPClassUID")))
        is_known, has_rows = kind.name != kind, header.value("Rows") is not None
        if is_known and "Image Storage" not in kind.name:
            return None
        uid = "".join(header.words("SeriesInstanceUID"))
        if not has_rows and not uid and (is_known or not own):
            raise UserError(f"{path}: ends before it says what it is; {DAMAGED}")
        if not has_rows and not is_known:
            return None
        modality = "".join(header.words("Modality")[:1])
        is_code = modality.isalnum() and modality.isupper() and len(modality) <= 6  # anything else may be typed text
        has_position = header.value("ImagePositionPatient") is not None
    return FileInfo(path, uid or str(path), modality if is_code else "?", has_position)


def _series(members: Sequence[FileInfo], folder: Path) -> Series:
    kind, files = members[0].modality, tuple(member.path for member in members)
    positioned = kind in VOLUME_MODALITIES or any(member.has_position for member in members)
    return Series(members[0].uid, kind, files, stacked=positioned and len(files) > 1, folder=folder)


def _single_series(folder: Path) -> Series:
    """The one series in ``folder``."""
    series, damaged, _, _ = find_series(folder)
    for path in damaged:
        read_dicom(path)  # raises the reason
        raise UserError(f"{path}: its header cannot be read; {DAMAGED}")
    if not series:
        raise UserError(f"{folder}: no DICOM images in this folder")
    if len(series) > 1:
        listed = ", ".join(str(one) for one in series[:4]) + (", …" if len(series) > 4 else "")
        raise UserError(f"{folder}: holds {len(series)} series: {listed}; put each into a folder of its own")
    return series[0]


_VALUE_GROUPS = ("PixelValueTransformationSequence", "FrameVOILUTSequence")


def _frames(header: Header) -> int:
    """The number of frames, after a check of the sizes; several frames need positions."""
    pixel_layout(header)
    count = frame_count(header)
    if count > 1 and header.item(PER_FRAME, 0) is None:
        raise UserError(f"{header.path}: holds {count} frames without positions; give this file by itself")
    return count


def _volume(stack: Stack, source: Path, opened: dict[Path, Header]) -> DicomVolume:
    planes = stack.planes
    layout = _common_layout(planes, source)
    scales = [grey_scale(p.header, *(functional_group(p.header, p.frame, name) for name in _VALUE_GROUPS)) for p in planes]
    voxels, slope, intercept = _fill_voxels(planes, layout, scales, opened)
    windows = {scale.window for scale in scales}
    window = windows.pop() if len(windows) == 1 else None
    if layout.sign < 0:
        slope, intercept, window = -slope, -intercept, (-window[1], -window[0]) if window else None
    plain = voxels.dtype.kind == "u" and (slope, intercept) == (1.0, 0.0)
    bits = bit_depth(layout) if plain else 32  # real values have no stored range
    base = canonical(voxels, stack.affine, source=source, bits=bits, slope=slope, intercept=intercept)
    values: dict[str, Any] = {field.name: getattr(base, field.name) for field in fields(Volume)}
    return DicomVolume(**values, voi_window=window, notes=stack.notes, frames=tuple((p.path, p.frame) for p in planes))


def _common_layout(planes: Sequence[Plane], source: Path) -> PixelLayout:
    first = pixel_layout(planes[0].header)
    if first.photometric not in GREY:
        raise UserError(f"{source}: its slices are in colour (PhotometricInterpretation), which a volume cannot be")
    for p in planes:
        other = pixel_layout(p.header)
        tag = next((name for name, a, b in zip(_LAYOUT_TAGS, first, other, strict=True) if a != b), None)
        if tag:
            raise UserError(f"{source}: {planes[0].path.name} and {p.path.name} differ in {tag}; keep one kind per folder")
    if first.rows * first.columns * len(planes) > MAX_VOXELS:
        size = f"{len(planes)} slices of {first.rows}×{first.columns}"
        raise UserError(f"{source}: {size}, over the limit of {MAX_VOXELS:,} voxels; refused unread, cut it into pieces")
    return first


_LAYOUT_TAGS = (
    *("Rows", "Columns", "SamplesPerPixel", "BitsAllocated", "BitsStored", "PixelRepresentation"),
    "PhotometricInterpretation",
)


def _fill_voxels(
    planes: Sequence[Plane], layout: PixelLayout, scales: Sequence[GreyScale], opened: dict[Path, Header]
) -> tuple[NDArray[Any], float, float]:
    """The voxels ``(S, H, W)``, slope and intercept: stored values if all slices have the same rescale, else real values."""
    linear = not any(p.header.item("ModalityLUTSequence", 0) for p in planes)
    stored = linear and len({(scale.slope, scale.intercept) for scale in scales}) == 1
    slope, intercept = (scales[0].slope, scales[0].intercept) if stored else (1.0, 0.0)
    voxels: NDArray[Any] | None = None
    pads: list[tuple[int, NDArray[np.bool_]]] = []
    darkest = np.inf  # of pixels that are not padding; multiplied by sign, less is darker
    sign = layout.sign * np.sign(slope)
    until = time_limit(len(planes))
    for k, (p, scale) in enumerate(zip(planes, scales, strict=True)):
        header = opened.get(p.path) or read_header(p.path, pixels=True)
        opened = {p.path: header}  # keep one header: frames of a file follow one another
        pixel_layout(header)
        raw = decode(header, layout, p.frame, until)
        values = raw if stored else to_real_values(header, scale, raw).astype(np.float32)
        if voxels is None:
            voxels = np.empty((len(planes), layout.rows, layout.columns), dtype=values.dtype)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise UserError(f"{p.path}: contains NaN or infinite pixels; replace them before use")
        voxels[k] = values
        pad = padding_mask(header, layout, raw)
        if pad.any():
            pads.append((k, pad))
        if not pad.all():
            darkest = min(darkest, float((values[~pad] * sign).min()))
    assert voxels is not None
    for k, pad in pads if np.isfinite(darkest) else ():
        voxels[k][pad] = darkest * sign
    return voxels, slope, intercept
