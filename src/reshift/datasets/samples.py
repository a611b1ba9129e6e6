"""Volumes and images → samples: which slices, how they are scaled and cropped, and when a slice is normal or abnormal.

Grey values are scaled once per volume (``Volume.window``). Every brain slice shows the same 240 × 240 mm around the centre of
the volume (BraTS's own field of view), padded or cut, so a pixel has the same size in millimetres in every brain data set.
Masks are cropped the same way, by nearest neighbour.
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
from reshift.datasets.plan import CaseResult, Sample
from reshift.errors import UserError

SplitOf = Callable[[int], str | None]  # label → split, or None to leave the image out
SquareImage = tuple[NDArray[np.uint8], NDArray[np.bool_]]  # pixels and lesion mask, (size, size)

FIELD = 240.0  # millimetres across
SHARE = 0.5  # of the largest slice's foreground; slices with less are vertex, base and air
GAP = 5.0  # millimetres between a normal slice and the nearest lesion
MIN_LESION = 10 / 128**2  # share of the image that a lesion must fill: ten pixels of 128 × 128
TOLERANCE = 2.0  # millimetres by which the corners of mask and image may differ

SLICE_RULES = [
    "grey values scaled once per volume, from its 0.5 % value to the 99.5 % value of its foreground",
    f"each image shows {FIELD:g} × {FIELD:g} mm around the centre of the volume, padded with background or cut",
    f"abnormal: the lesion fills at least {MIN_LESION:.2%} of the image (10 pixels at 128 × 128); slices with less are left out",
    f"normal: no lesion in the slice nor within {GAP:g} mm of it",
    "masks by nearest neighbour",
]
TRAINING_LESION = "abnormal slice of a training subject"
AREA_RULE = f"slices with at least {SHARE:g} of the largest slice's foreground"


@dataclass(frozen=True, eq=False)
class LabelledVolume:
    """A volume with its lesion mask and ignore mask."""

    volume: Volume
    lesion: NDArray[np.bool_] | None = None  # (S, H, W)
    ignore: NDArray[np.bool_] | None = None


def load_labelled_volume(
    image: Path, mask: Path | None = None, lesion: Collection[int] = (1,), ignore: Collection[int] = ()
) -> LabelledVolume:
    """Read a volume and its label map; a label that is neither ``lesion``, ``ignore`` nor 0 is refused."""
    volume = read_nifti(image)
    if mask is None:
        return LabelledVolume(volume)
    labels = read_nifti(mask)
    check_same_grid(volume, labels)
    values = np.stack([labels.plane(k) for k in range(len(labels))])
    whole = np.rint(values)
    if np.abs(values - whole).max() > 1e-3:
        raise UserError(f"{mask}: holds values between labels; it was resampled by interpolation, take the original")
    known = {0, *lesion, *ignore}
    unknown = sorted({int(v) for v in np.unique(whole)} - known)
    if unknown:
        raise UserError(f"{mask}: holds label {unknown[0]}; known are {', '.join(str(v) for v in sorted(known))}")
    return LabelledVolume(volume, np.isin(whole, list(lesion)), np.isin(whole, list(ignore)) if ignore else None)


def check_same_grid(volume: Volume, labels: Volume) -> None:
    """Refuse a mask of another size than its image, or whose header puts it at another position."""
    if labels.voxels.shape != volume.voxels.shape:
        sizes = f"{labels.voxels.shape} voxels, its image {volume.voxels.shape}"
        raise UserError(f"{labels.source}: has {sizes} (slices, rows, columns); they must be the same grid")
    s, h, w = volume.voxels.shape
    corners = np.array([[c, r, k, 1] for c in (0, w - 1) for r in (0, h - 1) for k in (0, s - 1)], dtype=np.float64).T
    apart = float(np.abs((volume.affine - labels.affine) @ corners).max())
    if apart > TOLERANCE:
        raise UserError(
            f"{labels.source}: is {apart:.0f} mm away from its image, by their headers; use the mask of the same volume"
        )


def slices_every(volume: Volume, millimetres: float) -> list[int]:
    """Slices at this distance, counted from the middle of those with enough foreground."""
    enough = volume.foreground_slices(SHARE)
    stride = max(1, round(millimetres / volume.spacing[0]))
    middle = enough[len(enough) // 2]
    return [k for k in enough if (k - middle) % stride == 0]


def cut_slices(
    labelled: LabelledVolume, levels: Sequence[int], size: int, key: str, split_of: SplitOf, note: str = ""
) -> CaseResult:
    """Make a sample of each of the slices ``levels``; ``split_of`` maps a label to a split, or to None to leave it out."""
    samples, left = list[Sample](), Counter[str]()
    for k in levels:
        lesion = crop_mask(labelled.lesion[k], labelled.volume, size) if labelled.lesion is not None else None
        ignore = crop_mask(labelled.ignore[k], labelled.volume, size) if labelled.ignore is not None else None
        label, why = _label(labelled, k, lesion, size)
        split = split_of(label) if label is not None else None
        if label is None or split is None:
            left[why or TRAINING_LESION] += 1
            continue
        pixels = crop_slice(labelled.volume, k, size)
        samples.append(Sample(f"{key}_{k:03d}", pixels, label, split, lesion if label else None, ignore, note))
    return CaseResult(samples, left)


def _label(labelled: LabelledVolume, k: int, lesion: NDArray[np.bool_] | None, size: int) -> tuple[int | None, str]:
    """0, 1, or None with the rule that leaves the slice out."""
    if labelled.lesion is None or lesion is None:
        return 0, ""
    if labelled.lesion[k].any():
        return (1, "") if lesion.sum() >= max(1, round(MIN_LESION * size**2)) else (None, "lesion too small")
    if labelled.ignore is not None and labelled.ignore[k].any():
        return None, "other pathology only"
    reach = int(GAP / labelled.volume.spacing[0])
    near = labelled.lesion[max(0, k - reach) : k + reach + 1].any()
    return (None, "no lesion, but one nearby") if near else (0, "")


def crop_slice(volume: Volume, k: int, size: int) -> NDArray[np.uint8]:
    """Slice ``k`` as an 8-bit image of the common field of view."""
    import PIL.Image

    low, high = volume.window
    grey = np.clip((volume.plane(k) - low) / (high - low), 0.0, 1.0)
    top, left, height, width = _box(volume)
    pad = max(0, int(np.ceil(-min(top, left)))) + 1
    padded = PIL.Image.fromarray(np.pad(grey, pad).astype(np.float32))
    box = (left + pad, top + pad, left + pad + width, top + pad + height)
    small = np.asarray(padded.resize((size, size), PIL.Image.Resampling.BILINEAR, box=box))
    return np.asarray(np.rint(np.clip(small, 0.0, 1.0) * 255), dtype=np.uint8)


def crop_mask(mask: NDArray[np.bool_], volume: Volume, size: int) -> NDArray[np.bool_]:
    """Crop a mask of one slice ``(H, W)`` to the common field of view, by nearest neighbour."""
    top, left, height, width = _box(volume)
    rows = np.floor(top + (np.arange(size) + 0.5) * height / size).astype(int)
    columns = np.floor(left + (np.arange(size) + 0.5) * width / size).astype(int)
    inside = ((rows >= 0) & (rows < mask.shape[0]))[:, None] & ((columns >= 0) & (columns < mask.shape[1]))[None, :]
    found = mask[np.ix_(rows.clip(0, mask.shape[0] - 1), columns.clip(0, mask.shape[1] - 1))]
    return np.asarray(found & inside)


def _box(volume: Volume) -> tuple[float, float, float, float]:
    """Top, left, height and width of the field of view, in the slice's own pixels."""
    _, row, column = volume.spacing
    _, h, w = volume.voxels.shape
    height, width = FIELD / row, FIELD / column
    return (h - height) / 2, (w - width) / 2, height, width


def square_image(image: Image, masks: Sequence[NDArray[np.bool_]], size: int, fit: str) -> SquareImage:
    """An image that is not a slice, and the union of its masks, both square."""
    mask = np.zeros(image.pixels.shape[:2], dtype=bool)
    for one in masks:
        mask |= one
    prepared = prepare(image, parse(DataConfig, {"size": size, "square": fit}))
    pixels = np.rint((prepared.pixels[0] + 1.0) * 127.5).astype(np.uint8)
    return pixels, prepare_mask(mask, prepared.geometry, size)


def read_square_image(path: Path, masks: Sequence[Path], size: int, fit: str, *, lesion: bool = False) -> SquareImage:
    """Read an image and its masks from files; a mask of another size is refused, and of a ``lesion`` masks without one."""
    image, planes = read_image(path), [read_mask(mask) for mask in masks]
    height, width = image.pixels.shape[:2]
    for mask, plane in zip(masks, planes, strict=True):
        if plane.shape != (height, width):
            raise UserError(f"{mask}: the mask has {plane.shape[1]}×{plane.shape[0]} pixels, its image {width}×{height}")
    if lesion and masks and not any(plane.any() for plane in planes):
        raise UserError(f"{masks[0]}: the mask is empty, and its image is one of those with a lesion; copy or remove both")
    return square_image(image, planes, size, fit)


def ready_image(path: Path, mask: Path | None, size: int, key: str, split_of: SplitOf, **sample: Any) -> CaseResult:
    """Make a sample of a slice that others have cut; its mask decides the label."""
    pixels, lesion = read_square_image(path, [mask] if mask else [], size, "crop")
    count, least = int(lesion.sum()), max(1, round(MIN_LESION * size**2))
    if 0 < count < least:
        return CaseResult([], Counter({"lesion too small": 1}))
    label = int(count > 0)
    split = split_of(label)
    if split is None:
        return CaseResult([], Counter({TRAINING_LESION: 1}))
    return CaseResult([Sample(key, pixels, label, split, lesion if label else None, **sample)])
