"""Open whatever a user may hold: PNG, JPEG and TIFF here, volumes elsewhere. What is wrong with a file is one line naming it."""

import os
from collections import Counter, OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.dicom.header import is_dicom
from reshift.data.image import Image
from reshift.data.nifti import SUFFIXES as NIFTI
from reshift.data.nifti import is_nifti, read_nifti
from reshift.data.volume import Volume
from reshift.errors import UserError

if TYPE_CHECKING:
    from reshift.data.dicom.series import Series

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "TIFF")
MAX_PIXELS = 100_000_000  # a 10,000×10,000 picture; more is a mistake or an attack
MIN_SIDE = 16  # below this nothing is left to look at
KEPT = 6  # volumes held open: image, mask and ignore mask of two scans

_TOO_LARGE = f"over the limit of {MAX_PIXELS:,} pixels; refused unread, shrink it or cut it into pieces"
_TOO_SMALL = f"too small; at least {MIN_SIDE}×{MIN_SIDE} is needed; remove it"
_WIDE_MODES = {"I;16": 16, "I;16B": 16, "I;16L": 16, "I;16N": 16, "I": 16, "F": 32}


def list_images(folder: Path) -> list[Path]:
    """Return every image file under ``folder``, sorted; hidden files and folders are passed over, links are not followed."""
    found: list[Path] = []
    for root, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(root, name) for name in files if name.lower().endswith(SUFFIXES + NIFTI) and not name.startswith(".")]
    return sorted(found)


class Scan(NamedTuple):
    """What a folder holds: a file, or a DICOM series with the folder it fills, or a name made up if it shares its folder."""

    path: Path
    series: "Series | None" = None


def list_scans(folder: Path) -> list[Scan]:
    """Return every picture and volume under ``folder``, sorted: files, and DICOM series by what their headers say."""
    found = [Scan(path) for path in list_images(folder)]
    if not _others(folder):
        return found
    from reshift.data.dicom.series import find_series

    series = find_series(folder)
    homes = Counter(path for one in series for path in {file.parent for file in one.files})
    for one in series:
        if not one.stacked:
            found += [Scan(path) for path in one.files if not path.name.lower().endswith(SUFFIXES)]
            continue
        home = Path(os.path.commonpath([file.parent for file in one.files]))
        alone = all(count == 1 for path, count in homes.items() if path == home or home in path.parents)
        name = home if alone else home / f"{one.modality}-{one.uid[-8:]}"
        found.append(Scan(name, replace(one, folder=name)))
    return sorted(found, key=lambda scan: scan.path)


def _others(folder: Path) -> bool:
    """Whether there is any file that may be DICOM, which can have any name or none: their headers must be looked at."""
    known = (*SUFFIXES, *NIFTI, ".csv", ".json", ".txt", ".md")
    return any(not name.startswith(".") and not name.lower().endswith(known) for _, _, files in os.walk(folder) for name in files)


def _refuse(err: OSError) -> None:
    """A folder that cannot be listed is an error: passing over it would lose its images without a word."""
    raise UserError(f"{err.filename}: cannot be listed ({err.strerror}); make it readable, or move it away") from err


def is_volume(path: Path) -> bool:
    """Whether ``path`` is looked at slice by slice: a NIfTI file, or the folder of a DICOM series."""
    return is_nifti(path) or (not path.name.lower().endswith(SUFFIXES) and path.is_dir())


def open_scan(path: Path, series: "Series | None" = None) -> Image | Volume:
    """Read any file we know, by its name or else by its content; a folder is a DICOM series."""
    if series is not None:
        from reshift.data.dicom.series import read_series

        return _checked(read_series(series))
    if is_nifti(path):
        return _checked(read_nifti(path))
    if path.is_dir() or (not path.name.lower().endswith(SUFFIXES) and is_dicom(path)):
        from reshift.data.dicom.series import read_dicom, read_series

        scan = read_series(path) if path.is_dir() else read_dicom(path)
        return _checked(scan) if isinstance(scan, Volume) else scan
    return read_image(path)


def open_volume(path: Path) -> Volume:
    """Open a volume, or find it among the last few opened: its slices are asked for one by one, by many threads."""
    try:
        stats = [file.stat() for file in (path, *(path.rglob("*") if path.is_dir() else ()))]
    except OSError as err:
        raise UserError(f"{path}: cannot be read ({err.strerror})") from None
    key = (path, max(stat.st_mtime_ns for stat in stats), sum(stat.st_size for stat in stats))  # a changed file is read again
    with _lock:
        mine = key not in _open
        waiting = _open.setdefault(key, Future())
        _open.move_to_end(key)
        while len(_open) > KEPT:
            _open.popitem(last=False)
    if mine:
        try:
            scan = open_scan(path)
            if not isinstance(scan, Volume):
                raise UserError(f"{path}: is a single picture, not a volume")
            waiting.set_result(scan)
        except BaseException as err:
            with _lock:
                _open.pop(key, None)
            waiting.set_exception(err)
    return waiting.result()


_open: "OrderedDict[tuple[Path, int, int], Future[Volume]]" = OrderedDict()
_lock = Lock()


def read_picture(path: Path, at: int | None = None) -> Image:
    """One picture: a whole file, or slice ``at`` of a volume (counted from the most inferior)."""
    if at is not None:
        return open_volume(path).image(at)
    scan = open_scan(path)
    if isinstance(scan, Volume):
        if len(scan) > 1:
            raise UserError(f"{path}: a volume of {len(scan)} slices, not one picture; 'reshift score' takes volumes")
        return scan.image(0)
    return scan


def read_region(path: Path, image: Path, at: int | None = None) -> NDArray[np.bool_]:
    """Read the mask ``path`` of ``image``, or of its slice ``at``; for a volume it must be one on the same voxels."""
    if at is None:
        return read_mask(path)
    if not is_volume(path):
        raise UserError(f"{path}: the mask of a volume must be a volume on the same voxels")
    scan, mask = open_volume(image), open_volume(path)
    if scan.voxels.shape != mask.voxels.shape:
        theirs, ours = ("×".join(str(n) for n in volume.native_shape) for volume in (mask, scan))
        raise UserError(f"{path}: has {theirs} voxels, its image {ours}; draw it on the image's own voxels")
    if not np.allclose(scan.affine, mask.affine, rtol=0.0, atol=0.01 * min(scan.spacing)):
        raise UserError(f"{path}: lies elsewhere in space than its image {image.name} (another affine); resample it to the image")
    return np.asarray(mask.plane(at) >= 0.5)  # labels are whole numbers, but may be stored with a slope


def _checked(volume: Volume) -> Volume:
    slices, height, width = volume.voxels.shape
    if min(height, width) < MIN_SIDE:
        raise UserError(f"{volume.source}: its {slices} axial slices are {width}×{height} pixels, {_TOO_SMALL}")
    return volume


def read_image(path: Path) -> Image:
    """Read ``path`` and refuse, in one line, what cannot be scored."""
    with _opened(path) as picture:
        bits = _WIDE_MODES.get(picture.mode, 8)
        pixels = _pixels(picture)
    if not np.isfinite(pixels).all():
        raise UserError(f"{path}: contains NaN or infinite pixels; replace them before use")
    if pixels.min() == pixels.max():
        raise UserError(f"{path}: every pixel has the value {pixels.flat[0]:g}; there is nothing to see, remove the file")
    if bits == 16 and not 0 <= pixels.min() <= pixels.max() <= 65535:
        bits = 32  # a 32-bit integer file; like a float one, it has no range to speak of
    return Image(pixels, bits, path)


def read_mask(path: Path) -> NDArray[np.bool_]:
    """Read a lesion mask, ``(H, W)``: any pixel above zero in any channel is lesion."""
    with _opened(path) as picture:
        return np.asarray((_pixels(picture) > 0).any(-1))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a picture; Pillow's many failures, now or while decoding, become one line each."""
    import PIL.Image

    try:
        if path.stat().st_size == 0:
            raise UserError(f"{path}: the file is empty (0 bytes); remove it or copy it again")
        with PIL.Image.open(path, formats=FORMATS) as picture:  # no others: some of Pillow's formats start other programs
            _check_size(path, *picture.size)
            pages = getattr(picture, "n_frames", 1)
            if pages > 1 and picture.format == "TIFF":
                raise UserError(f"{path}: holds {pages} pages; save every page as a file of its own")
            yield picture
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except PIL.UnidentifiedImageError:
        raise UserError(f"{path}: not a PNG, JPEG or TIFF image we can read, or damaged; remove or replace it") from None
    except PIL.Image.DecompressionBombError:
        raise UserError(f"{path}: {_TOO_LARGE}") from None
    except Exception as err:  # damaged bytes make decoders raise about anything, and none of it is our mistake
        reason = getattr(err, "strerror", None) or str(err) or type(err).__name__
        raise UserError(f"{path}: cannot be read ({reason}); damaged or cut short? Remove it or copy it again") from None


def _check_size(path: Path, width: int, height: int) -> None:
    """Refuse by the size the file claims, before anything is decoded."""
    if width * height > MAX_PIXELS:
        raise UserError(f"{path}: {width}×{height} pixels, {_TOO_LARGE}")
    if min(width, height) < MIN_SIDE:
        raise UserError(f"{path}: {width}×{height} pixels is {_TOO_SMALL}")


def _pixels(picture: Any) -> NDArray[np.float32]:
    """Decode to ``(H, W, C)``: C = 1 for grey, 3 for colour. Transparency is laid over black, palettes are resolved."""
    if picture.mode in _WIDE_MODES or picture.mode in ("L", "1"):
        clear = picture.info.get("transparency")  # one grey value that stands for "nothing here"
        stored = np.array(picture.convert("L") if picture.mode == "1" else picture, dtype=np.float32)
        if isinstance(clear, int):
            stored[stored == clear] = 0.0
        return stored[:, :, None]
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        rgba = np.asarray(picture.convert("RGBA"), dtype=np.float32)
        colour = np.rint(rgba[:, :, :3] * (rgba[:, :, 3:] / 255.0))
    else:
        colour = np.asarray(picture.convert("RGB"), dtype=np.float32)
    same = np.array_equal(colour[..., 0], colour[..., 1]) and np.array_equal(colour[..., 0], colour[..., 2])
    return colour[:, :, :1] if same else colour
