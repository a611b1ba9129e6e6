"""Volumes and pictures → samples: which slices, how they are scaled and framed, and when a slice is normal or abnormal.

Grey values are scaled once per volume (``Volume.window``), so a slice keeps its place in the scan. Every brain slice shows the
same 240 × 240 mm about the centre of the scan (BraTS's own field of view), padded with background or cut: a pixel is as many
millimetres in every brain dataset, whatever the voxels were. Masks are taken the same way by nearest neighbour.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshift.config import DataConfig, parse
from reshift.data.image import Image
from reshift.data.nifti import read_nifti
from reshift.data.prepare import prepare, prepare_mask
from reshift.data.read import read_image, read_mask
from reshift.data.volume import Volume
from reshift.datasets.build import Made, Sample
from reshift.errors import UserError

FIELD = 240.0  # millimetres across
SHARE = 0.5  # of the largest slice's foreground; smaller ones are vertex, base and air
GAP = 5.0  # millimetres between a normal slice and the nearest lesion
LEAST = 10 / 128**2  # share of the picture that a lesion must fill: ten pixels of 128 × 128
TOLERANCE = 2.0  # millimetres by which a mask's corners may lie beside its image's

SLICE_RULES = [
    "grey values scaled once per volume, from its 0.5 % value to the 99.5 % value of its foreground",
    f"each picture shows {FIELD:g} × {FIELD:g} mm about the centre of the scan, padded with background or cut",
    f"abnormal: the lesion fills at least {LEAST:.2%} of the picture (10 pixels at 128 × 128); slices with less are left out",
    f"normal: no lesion in the slice nor within {GAP:g} mm of it",
    "masks by nearest neighbour",
]
AREA_RULE = f"slices with at least {SHARE:g} of the largest slice's foreground"


@dataclass(frozen=True, eq=False)
class Scan:
    """A volume with what is marked in it, slice by slice."""

    volume: Volume
    lesion: NDArray[np.bool_] | None = None  # (S, H, W)
    ignore: NDArray[np.bool_] | None = None


def load_scan(image: Path, mask: Path | None = None, lesion: Collection[int] = (1,), ignore: Collection[int] = ()) -> Scan:
    """Read a volume and its label map; a label that is neither ``lesion``, ``ignore`` nor 0 is refused."""
    volume = read_nifti(image)
    if mask is None:
        return Scan(volume)
    labels = read_nifti(mask)
    if labels.voxels.shape != volume.voxels.shape:
        sizes = f"{labels.voxels.shape} voxels, its image {volume.voxels.shape}"
        raise UserError(f"{mask}: has {sizes} (slices, rows, columns); they must be the same grid")
    _same_place(volume, labels)
    values = np.stack([labels.plane(k) for k in range(len(labels))])
    whole = np.rint(values)
    if np.abs(values - whole).max() > 1e-3:
        raise UserError(f"{mask}: holds values between labels; it was resampled by interpolation, take the original")
    known = {0, *lesion, *ignore}
    odd = sorted({int(v) for v in np.unique(whole)} - known)
    if odd:
        raise UserError(f"{mask}: holds label {odd[0]}; known are {', '.join(str(v) for v in sorted(known))}")
    return Scan(volume, np.isin(whole, list(lesion)), np.isin(whole, list(ignore)) if ignore else None)


def _same_place(volume: Volume, labels: Volume) -> None:
    """Two headers that disagree would turn the mask another way than its image, without a word."""
    s, h, w = volume.voxels.shape
    corners = np.array([[c, r, k, 1] for c in (0, w - 1) for r in (0, h - 1) for k in (0, s - 1)], dtype=np.float64).T
    apart = float(np.abs((volume.affine - labels.affine) @ corners).max())
    if apart > TOLERANCE:
        raise UserError(f"{labels.source}: lies {apart:.0f} mm beside its image, by their headers; take a mask of the same scan")


def every(volume: Volume, millimetres: float) -> list[int]:
    """Slices that far apart, counted from the middle of those with enough foreground."""
    enough = volume.chosen(SHARE)
    stride = max(1, round(millimetres / volume.spacing[0]))
    middle = enough[len(enough) // 2]
    return [k for k in enough if (k - middle) % stride == 0]


def cut(scan: Scan, levels: Sequence[int], size: int, key: str, split: Callable[[int], str | None], note: str = "") -> Made:
    """Make a sample of each of the slices ``levels``; ``split`` says where a label goes, or None for nowhere."""
    samples, left = list[Sample](), Counter[str]()
    for k in levels:
        lesion = frame_mask(scan.lesion[k], scan.volume, size) if scan.lesion is not None else None
        ignore = frame_mask(scan.ignore[k], scan.volume, size) if scan.ignore is not None else None
        label, why = _label(scan, k, lesion, size)
        to = split(label) if label is not None else None
        if label is None or to is None:
            left[why or "abnormal slice of a training subject"] += 1
            continue
        pixels = frame(scan.volume, k, size)
        samples.append(Sample(f"{key}_{k:03d}", pixels, label, to, lesion if label else None, ignore, note))
    return Made(samples, left)


def _label(scan: Scan, k: int, lesion: NDArray[np.bool_] | None, size: int) -> tuple[int | None, str]:
    """0, 1, or None with the rule that leaves the slice out."""
    if scan.lesion is None or lesion is None:
        return 0, ""
    if scan.lesion[k].any():
        return (1, "") if lesion.sum() >= max(1, round(LEAST * size**2)) else (None, "lesion too small")
    if scan.ignore is not None and scan.ignore[k].any():
        return None, "other pathology only"
    reach = int(GAP / scan.volume.spacing[0])
    near = scan.lesion[max(0, k - reach) : k + reach + 1].any()
    return (None, "no lesion, but one close by") if near else (0, "")


def frame(volume: Volume, k: int, size: int) -> NDArray[np.uint8]:
    """Slice ``k`` as an 8-bit picture of the common field."""
    import PIL.Image

    low, high = volume.window
    grey = np.clip((volume.plane(k) - low) / (high - low), 0.0, 1.0)
    top, left, height, width = _box(volume)
    pad = max(0, int(np.ceil(-min(top, left)))) + 1
    picture = PIL.Image.fromarray(np.pad(grey, pad).astype(np.float32))
    box = (left + pad, top + pad, left + pad + width, top + pad + height)
    small = np.asarray(picture.resize((size, size), PIL.Image.Resampling.BILINEAR, box=box))
    return np.asarray(np.rint(np.clip(small, 0.0, 1.0) * 255), dtype=np.uint8)


def frame_mask(mask: NDArray[np.bool_], volume: Volume, size: int) -> NDArray[np.bool_]:
    """Take a mask of one slice ``(H, W)`` to the same field, by nearest neighbour."""
    top, left, height, width = _box(volume)
    rows = np.floor(top + (np.arange(size) + 0.5) * height / size).astype(int)
    columns = np.floor(left + (np.arange(size) + 0.5) * width / size).astype(int)
    inside = ((rows >= 0) & (rows < mask.shape[0]))[:, None] & ((columns >= 0) & (columns < mask.shape[1]))[None, :]
    found = mask[np.ix_(rows.clip(0, mask.shape[0] - 1), columns.clip(0, mask.shape[1] - 1))]
    return np.asarray(found & inside)


def _box(volume: Volume) -> tuple[float, float, float, float]:
    """Top, left, height and width of the field, in the slice's own pixels."""
    _, row, column = volume.spacing
    _, h, w = volume.voxels.shape
    height, width = FIELD / row, FIELD / column
    return (h - height) / 2, (w - width) / 2, height, width


def picture(image: Image, masks: Sequence[NDArray[np.bool_]], size: int, fit: str) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """A picture that is no slice, and the union of its masks, as the network will see them."""
    shape = image.pixels.shape[:2]
    mask = np.zeros(shape, dtype=bool)
    for one in masks:
        if one.shape != shape:
            raise UserError(f"{image.source}: its mask has {one.shape[1]}×{one.shape[0]} pixels, not {shape[1]}×{shape[0]}")
        mask |= one
    prepared = prepare(image, parse(DataConfig, {"size": size, "square": fit}))
    pixels = np.rint((prepared.pixels[0] + 1.0) * 127.5).astype(np.uint8)
    return pixels, prepare_mask(mask, prepared.geometry, size)


def read_picture(path: Path, masks: Sequence[Path], size: int, fit: str) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Read a picture and its masks from files."""
    return picture(read_image(path), [read_mask(mask) for mask in masks], size, fit)


def ready_made(path: Path, mask: Path | None, size: int, key: str, split: Callable[[int], str | None], **sample: Any) -> Made:
    """A picture that others cut out: it keeps its frame, and its mask decides the label."""
    pixels, lesion = read_picture(path, [mask] if mask else [], size, "crop")
    count, least = int(lesion.sum()), max(1, round(LEAST * size**2))
    if 0 < count < least:
        return Made([], Counter({"lesion too small": 1}))
    label = int(count > 0)
    to = split(label)
    return Made([Sample(key, pixels, label, to, lesion if label else None, **sample)]) if to else Made([])
