"""Read PNG, JPEG and TIFF: 8 and 16 bit, float, grey and colour. Whatever is wrong with a file is one line that names it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reshift.data.image import Image
from reshift.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "TIFF")
MAX_PIXELS = 100_000_000  # a 10,000×10,000 picture; more is a mistake or an attack
MIN_SIDE = 16  # below this nothing is left to look at

_TOO_LARGE = f"over the limit of {MAX_PIXELS:,} pixels; refused unread, shrink it or cut it into pieces"
_WIDE_MODES = {"I;16": 16, "I;16B": 16, "I;16L": 16, "I;16N": 16, "I": 16, "F": 32}


def list_images(folder: Path) -> list[Path]:
    """Return every image file under ``folder``, sorted; hidden files and folders are passed over, links are not followed."""
    found: list[Path] = []
    for root, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(root, name) for name in files if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
    return sorted(found)


def _refuse(err: OSError) -> None:
    """A folder that cannot be listed is an error: passing over it would lose its images without a word."""
    raise UserError(f"{err.filename}: cannot be listed ({err.strerror}); make it readable, or move it away") from err


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
        raise UserError(f"{path}: {width}×{height} pixels is too small; at least {MIN_SIDE}×{MIN_SIDE} is needed; remove it")


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
