"""Read PNG, JPEG and TIFF: 8 and 16 bit, float, grey and colour. Whatever is wrong with a file is one line that names it."""

import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshift.data.image import Image
from reshift.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
MAX_PIXELS = 100_000_000  # a 10,000×10,000 picture; more is a mistake or an attack
MIN_SIDE = 16  # below this nothing is left to look at

_WIDE_MODES = {"I;16": 16, "I;16B": 16, "I;16L": 16, "I;16N": 16, "I": 16, "F": 32}


def list_images(folder: Path) -> list[Path]:
    """Return every image file under ``folder``, sorted; hidden files and folders are passed over, links are not followed."""
    found: list[Path] = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(root, name) for name in files if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
    return sorted(found)


def read_image(path: Path) -> Image:
    """Read ``path`` and refuse, in one line, what cannot be scored."""
    with _opened(path) as picture:
        bits = _WIDE_MODES.get(picture.mode, 8)
        pixels = _pixels(picture)
    if not np.isfinite(pixels).all():
        raise UserError(f"{path}: contains NaN or infinite pixels; replace them before use")
    if pixels.min() == pixels.max():
        raise UserError(f"{path}: every pixel has the value {pixels.flat[0]:g}; there is nothing to see, remove the file")
    return Image(pixels, bits, path)


def read_mask(path: Path) -> NDArray[np.bool_]:
    """Read a lesion mask, ``(H, W)``: any pixel above zero in any channel is lesion."""
    with _opened(path) as picture:
        return np.asarray((_pixels(picture) > 0).any(-1))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a picture; Pillow's many failures, now or while decoding, become one line each."""
    import PIL.Image

    PIL.Image.MAX_IMAGE_PIXELS = None  # our own limit below refuses before anything is decoded
    try:
        if path.stat().st_size == 0:
            raise UserError(f"{path}: the file is empty (0 bytes)")
        with PIL.Image.open(path) as picture:
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise UserError(f"{path}: {width}×{height} pixels is over the limit of {MAX_PIXELS:,}; refused unread")
            if min(width, height) < MIN_SIDE:
                raise UserError(f"{path}: {width}×{height} pixels is too small; at least {MIN_SIDE}×{MIN_SIDE} is needed")
            yield picture
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except PIL.UnidentifiedImageError:
        raise UserError(f"{path}: not a PNG, JPEG or TIFF image, or damaged at its start") from None
    except (OSError, SyntaxError, ValueError, EOFError, MemoryError, struct.error, zlib.error) as err:
        raise UserError(f"{path}: cannot be read, damaged or truncated ({err})") from None


def _pixels(picture: Any) -> NDArray[np.float32]:
    """Decode to ``(H, W, C)``: C = 1 for grey, 3 for colour. Transparency is laid over black, palettes are resolved."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about odd metadata; the pixels are what counts
        if picture.mode in _WIDE_MODES or picture.mode == "L":
            grey = np.asarray(picture, dtype=np.float32)
            return grey[:, :, None]
        if picture.mode == "1":
            return np.asarray(picture.convert("L"), dtype=np.float32)[:, :, None]
        transparent = picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info
        if transparent:
            rgba = np.asarray(picture.convert("RGBA"), dtype=np.float32)
            colour = np.rint(rgba[:, :, :3] * (rgba[:, :, 3:] / 255.0))
        else:
            colour = np.asarray(picture.convert("RGB"), dtype=np.float32)
    same = np.array_equal(colour[..., 0], colour[..., 1]) and np.array_equal(colour[..., 0], colour[..., 2])
    return colour[:, :, :1] if same else colour
