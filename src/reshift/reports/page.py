"""What all pages share: templates, and small images as text inside the page, so that a page is one file without network."""

import base64
import io
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    from jinja2 import Environment

# Mail servers commonly refuse attachments above 25 MB; the rest is left for names, notes and the page itself.
THUMBNAIL_BYTES = 21_000_000


@cache
def templates() -> "Environment":
    """The templates of this folder; text that is filled in can never become markup."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("reshift.reports")
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    found.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":"), "default": str}
    found.filters["image_uri"] = image_uri
    return found


def fill(template: str, **content: Any) -> str:
    """Return a page as text."""
    return templates().get_template(template).render(content)


def image_uri(image: str) -> str:
    """The address of an image inside the page, given as base64 JPEG or PNG."""
    return f"data:image/{'jpeg' if image.startswith('/9j/') else 'png'};base64,{image}"


def thumbnail(pixels: NDArray[np.float32], side: int = 96) -> str:
    """Encode an image (H, W) or (C, H, W) in [-1, 1] as base64 JPEG or PNG, whichever is smaller."""
    planes = np.asarray(pixels, dtype=np.float32)
    if planes.ndim == 3:
        # Two or four channels are modalities, not colours: the first one is shown.
        planes = planes.transpose(1, 2, 0) if planes.shape[0] == 3 else planes[0]
    grey = np.rint((np.clip(np.nan_to_num(planes), -1, 1) + 1) * 127.5).astype(np.uint8)
    return encode_photo(shrink(Image.fromarray(grey), side, Image.Resampling.LANCZOS))


def heat_thumbnail(heatmap: NDArray[np.float32], heat_scale: float, side: int = 96) -> str:
    """Encode a heat-map as a base64 grey PNG on a fixed scale: 0 is black, ``heat_scale`` and above is white."""
    values = np.nan_to_num(np.asarray(heatmap, dtype=np.float32), nan=0.0)
    small = np.asarray(shrink(Image.fromarray(values), side, Image.Resampling.BOX), dtype=np.float64)
    # A constant calibration map gives a scale of zero; anything above it is then full colour.
    share = np.clip(small / (heat_scale if heat_scale > 0 else 1e-12), 0, 1)
    return encode(Image.fromarray(np.rint(share * 255).astype(np.uint8)))


def mask_thumbnail(mask: NDArray[np.bool_], side: int = 96) -> str:
    """Encode a ground-truth mask as a base64 1-bit PNG."""
    grey = Image.fromarray(np.asarray(mask, dtype=bool).astype(np.uint8) * 255)
    return encode(to_bits(shrink(grey, side, Image.Resampling.BOX)))


def shrink(image: Image.Image, side: int, method: Image.Resampling) -> Image.Image:
    """Reduce an image so that its longer side is at most ``side``."""
    ratio = side / max(image.size)
    if ratio >= 1:
        return image
    width, height = (max(1, round(length * ratio)) for length in image.size)
    return image.resize((width, height), method)


def encode(image: Image.Image, kind: str = "PNG", **options: int) -> str:
    """Encode as base64."""
    buffer = io.BytesIO()
    image.save(buffer, kind, optimize=True, **options)
    return base64.b64encode(buffer.getvalue()).decode()


def encode_photo(image: Image.Image) -> str:
    """Encode as base64 JPEG or PNG, whichever is smaller."""
    return min(encode(image, "JPEG", quality=80), encode(image), key=len)


def decode(text: str) -> Image.Image:
    """Read an image that ``encode`` made."""
    return Image.open(io.BytesIO(base64.b64decode(text)))


def to_bits(grey: Image.Image) -> Image.Image:
    """Make a reduced mask black and white again; a lesion smaller than a pixel keeps one."""
    coverage = np.asarray(grey)
    inside = coverage >= 128
    if not inside.any():
        inside = coverage > 0
    return Image.fromarray(inside.astype(np.uint8) * 255).convert("1", dither=Image.Dither.NONE)
