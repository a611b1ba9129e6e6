"""Read PNG, JPEG and TIFF with Pillow. Whatever is wrong with a file becomes one line that names it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshift.data.files import check_file
from reshift.data.image import LARGEST_16_BIT, MAX_PIXELS, MIN_SIDE, TOO_SMALL, Image, claim_pixels, row_blocks
from reshift.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
MAX_SCANS = 100  # of a JPEG; a progressive one has about ten
FORMATS = ("PNG", "JPEG", "TIFF")  # no others: some of Pillow's formats start other programs

_TOO_LARGE = "pixels; refused unread, shrink it or cut it into pieces, or raise data.max_pixels"
_WIDE_MODES = {"I;16": 16, "I;16B": 16, "I;16L": 16, "I;16N": 16, "I": 16, "F": 32}  # Pillow's mode → bits


def read_raster(path: Path, max_pixels: int = MAX_PIXELS) -> Image:
    """Read ``path``, or refuse it in one line."""
    with _open(path, max_pixels) as file:
        bits = _WIDE_MODES.get(file.mode, 8)
        pixels = _pixels(file)
    if pixels.dtype.kind == "f" and not all(np.isfinite(rows).all() for rows in row_blocks(pixels)):
        raise UserError(f"{path}: contains NaN or infinite pixels; replace them before use")
    if pixels.min() == pixels.max():
        raise UserError(f"{path}: every pixel has the value {pixels.flat[0]:g}; there is nothing to see, remove the file")
    if bits == 16 and not 0 <= pixels.min() <= pixels.max() <= LARGEST_16_BIT:
        bits = 32  # a 32-bit integer file; like a float file, it has no fixed range
    return Image(pixels, bits, path)


def read_raster_mask(path: Path) -> NDArray[np.bool_]:
    """Read a lesion mask, ``(H, W)``: any pixel above zero in any channel is lesion."""
    with _open(path, MAX_PIXELS) as file:
        return np.asarray((_pixels(file) > 0).any(-1))


@contextmanager
def _open(path: Path, max_pixels: int) -> Iterator[Any]:
    """Open a file; Pillow's many failures, now or while decoding, become one line each."""
    import PIL.Image

    check_file(path)
    try:
        with PIL.Image.open(path, formats=FORMATS) as file:
            _check_size(path, *file.size, max_pixels)
            _check_scans(path, file.format)
            claim_pixels(file.width * file.height)
            pages = getattr(file, "n_frames", 1)
            if pages > 1 and file.format == "TIFF":
                raise UserError(f"{path}: holds {pages} pages; save every page as a separate file")
            yield file
    except UserError:
        raise
    except PIL.UnidentifiedImageError:
        raise UserError(f"{path}: not a PNG, JPEG or TIFF image we can read, or damaged; remove or replace it") from None
    except PIL.Image.DecompressionBombError:
        raise UserError(f"{path}: over the limit of {max_pixels:,} {_TOO_LARGE}") from None
    except Exception as err:  # a decoder can raise anything on damaged bytes
        reason = getattr(err, "strerror", None) or str(err) or type(err).__name__
        raise UserError(f"{path}: cannot be read ({reason}); damaged or cut short? Remove it or copy it again") from None


def _check_size(path: Path, width: int, height: int, max_pixels: int) -> None:
    """Refuse by the size the file claims, before anything is decoded."""
    if width * height > max_pixels:
        raise UserError(f"{path}: {width}×{height} pixels, over the limit of {max_pixels:,} {_TOO_LARGE}")
    if min(width, height) < MIN_SIDE:
        raise UserError(f"{path}: {width}×{height} pixels is {TOO_SMALL}")


def _check_scans(path: Path, kind: str | None) -> None:
    """Refuse a JPEG whose many scans each go over all of its pixels: a small file could take hours to decode."""
    scans = path.read_bytes().count(b"\xff\xda") if kind == "JPEG" else 0
    if scans > MAX_SCANS:
        raise UserError(f"{path}: is built from {scans:,} scans, over the limit of {MAX_SCANS}; save it as PNG or plain JPEG")


def _pixels(file: Any) -> NDArray[Any]:
    """Decode to ``(H, W, C)``: C = 1 for grey, 3 for colour. Transparency becomes black, palettes are resolved."""
    if file.mode in _WIDE_MODES or file.mode in ("L", "1"):
        transparent = file.info.get("transparency")  # one grey value that means "nothing here"
        stored = np.array(file.convert("L") if file.mode == "1" else file)
        if stored.dtype not in (np.uint8, np.uint16):
            kind = np.uint16 if stored.dtype.kind == "u" else np.float32  # big-endian; 32-bit integers
            stored = stored.astype(kind, copy=False)
        if isinstance(transparent, int):
            stored[stored == transparent] = 0
        return stored[:, :, None]
    if file.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in file.info:
        colour = _over_black(np.asarray(file.convert("RGBA")))
    else:
        colour = np.asarray(file if file.mode == "RGB" else file.convert("RGB"))
    is_grey = all((rows[..., :1] == rows[..., 1:]).all() for rows in row_blocks(colour))
    return np.ascontiguousarray(colour[:, :, :1]) if is_grey else colour


def _over_black(rgba: NDArray[np.uint8]) -> NDArray[np.uint8]:
    colour, at = np.empty((*rgba.shape[:2], 3), np.uint8), 0
    for rows in row_blocks(rgba):
        alpha = rows[:, :, 3:].astype(np.float32)
        colour[at : at + len(rows)] = np.rint(rows[:, :, :3] * (alpha / 255.0))
        at += len(rows)
    return colour
