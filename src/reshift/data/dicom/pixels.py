"""DICOM pixels to grey values: decode → modality rescale or LUT → VOI LUT or window → MONOCHROME1.

A linear window becomes ``Image.window``, the grey range that is scaled to the network's input; values are not clipped. A VOI
LUT or sigmoid is applied, and its output range becomes the window. MONOCHROME1 (low is bright) is negated, and so is its
window. Padding gets the darkest value that is not padding.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.dicom.decode import decompress, stream_size
from reshift.data.dicom.header import DAMAGED, Header, user_errors
from reshift.data.dicom.layout import GREY, PixelLayout, bit_depth, frame_count, pixel_layout
from reshift.data.image import MAX_PIXELS, Image, claim_pixels, row_blocks
from reshift.errors import UserError

if TYPE_CHECKING:
    from pydicom.pixels.decoders.base import Decoder
    from pydicom.uid import UID

SPACINGS = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing")
_EXTRA = "pip install 'reshift[dicom]'"
_FLOATS = {"FloatPixelData": 32, "DoubleFloatPixelData": 64}

Window = tuple[float, float]


class GreyScale(NamedTuple):
    """How stored values become real ones, and the range of real values to show."""

    slope: float
    intercept: float
    window: Window | None


def decode(header: Header, layout: PixelLayout, frame: int = 0, until: float = math.inf) -> NDArray[Any]:
    """One frame's stored values, ``(H, W)`` or ``(H, W, 3)`` RGB, without unused high bits; ``until``: see ``time_limit``."""
    from pydicom.uid import RLELossless

    path, syntax = header.path, _syntax(header)
    decoder = _decoder(header, layout, syntax)
    name = next((tag for tag in ("PixelData", *_FLOATS) if header.value(tag) is not None), None)
    if name is None:
        raise UserError(f"{path}: has no PixelData; it is not an image, or was exported without its pixels")
    if syntax.is_encapsulated and syntax != RLELossless:
        array = _decompress(header, layout, frame, syntax, until)
    else:
        array = _decode_here(header, layout, frame, decoder, name)
    if array is None:
        raise UserError(f"{path}: its PixelData ({syntax.name}) cannot be decoded; {DAMAGED}")
    if array.shape != (layout.rows, layout.columns, 3)[: 3 if layout.samples == 3 else 2]:
        raise UserError(f"{path}: its PixelData is not of the size that Rows and Columns give; {DAMAGED}")
    return np.asarray(array)


def _decompress(header: Header, layout: PixelLayout, frame: int, syntax: "UID", until: float) -> NDArray[Any] | None:
    try:
        return decompress(_compressed_frame(header, layout, frame), _options(header, layout, syntax), until)
    except TimeoutError:
        raise UserError(f"{header.path}: takes too long to decode ({syntax.name}); stopped, export it uncompressed") from None


def _decode_here(header: Header, layout: PixelLayout, frame: int, decoder: "Decoder", name: str) -> NDArray[Any] | None:
    """Decode native and RLE pixels, which pydicom does itself."""
    if not decoder.UID.is_encapsulated:
        _check_length(header, layout, name)
    try:
        with user_errors(header.path):
            return np.asarray(decoder.as_array(header.tags, index=frame)[0])
    except UserError:
        return None


def _options(header: Header, layout: PixelLayout, syntax: "UID") -> dict[str, Any]:
    """What a decoder needs; nothing about the patient."""
    return {
        "transfer_syntax_uid": str(syntax),
        "rows": layout.rows,
        "columns": layout.columns,
        "samples_per_pixel": layout.samples,
        "photometric_interpretation": layout.photometric,
        "bits_allocated": layout.allocated,
        "bits_stored": layout.stored,
        "pixel_representation": int(layout.signed),
        "planar_configuration": header.integer("PlanarConfiguration", 0),
        "pixel_keyword": "PixelData",
        "number_of_frames": 1,
    }


def _syntax(header: Header) -> "UID":
    from pydicom.uid import UID

    with user_errors(header.path):
        meta = getattr(header.tags, "file_meta", None)
        syntax = meta.get("TransferSyntaxUID") if meta is not None else None
    if syntax is None:
        raise UserError(f"{header.path}: has no TransferSyntaxUID, so its pixels cannot be decoded; export it again")
    if not isinstance(syntax, UID) or not syntax.is_transfer_syntax or syntax.is_private:  # damaged, it can be of any type
        raise UserError(f"{header.path}: its TransferSyntaxUID is unknown; export it as Explicit VR Little Endian")
    return syntax


def _decoder(header: Header, layout: PixelLayout, syntax: "UID") -> "Decoder":
    from pydicom.pixels.decoders import gdcm
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.uid import JPEGExtended12Bit

    if syntax == JPEGExtended12Bit and layout.stored > 8:
        what = f"is compressed with {syntax.name} at {layout.stored} bits"
        raise UserError(f"{header.path}: {what}, which no decoder here reads; export it uncompressed")

    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise UserError(f"{header.path}: {syntax.name} is not for images; export it as Explicit VR Little Endian") from None
    if not decoder.is_available:
        help_ = f"run {_EXTRA}" if syntax in gdcm.DECODER_DEPENDENCIES else "export it uncompressed"
        raise UserError(f"{header.path}: is compressed with {syntax.name}, and no decoder for it is installed; {help_}")
    return decoder


def _check_length(header: Header, layout: PixelLayout, name: str) -> None:
    values = layout.rows * layout.columns * layout.samples * frame_count(header)
    need = values * _FLOATS.get(name, layout.allocated) // 8
    if layout.photometric == "YBR_FULL_422":  # two pixels share their colour
        need = need * 2 // 3
    have = len(header.value(name))
    if have < need:
        raise UserError(f"{header.path}: its {name} holds {have:,} of {need:,} bytes; cut short, copy or export it again")


def _compressed_frame(header: Header, layout: PixelLayout, frame: int) -> bytes:
    """The compressed frame. Decoders use the size it states itself, so that must agree with the header."""
    from pydicom.encaps import get_frame

    with user_errors(header.path):
        data = get_frame(header.value("PixelData"), frame, number_of_frames=frame_count(header))
        size = stream_size(data)
    if size is not None and size != (layout.rows, layout.columns):
        both = f"{size[0]}×{size[1]} within, {layout.rows}×{layout.columns} by Rows and Columns"
        raise UserError(f"{header.path}: its compressed image has another size than its header ({both}); {DAMAGED}")
    return data


def grey_scale(header: Header, rescale: Header, voi: Header) -> GreyScale:
    """Rescale and window, from the functional groups ``rescale`` and ``voi`` of an enhanced file, else the header itself."""
    slope, intercept = rescale.number("RescaleSlope"), rescale.number("RescaleIntercept")
    if slope == 0:
        raise UserError(f"{header.path}: its RescaleSlope is 0, which leaves one grey value; export it again")
    window = None
    centre, width = voi.number("WindowCenter"), voi.number("WindowWidth")
    if centre is not None and width is not None:
        if voi.words("VOILUTFunction")[:1] in ((), ("LINEAR",)):  # PS3.3 C.11.2.1.2: the width counts grey levels
            centre, width = centre - 0.5, width - 1.0
        window = (centre - width / 2, centre + width / 2) if width > 0 else None
    return GreyScale(1.0 if slope is None else slope, intercept or 0.0, window)


def to_real_values(header: Header, scale: GreyScale, stored: NDArray[Any]) -> NDArray[np.float64]:
    """Stored values → real ones, e.g. Hounsfield units."""
    if header.item("ModalityLUTSequence", 0):
        from pydicom.pixels.processing import apply_modality_lut

        with user_errors(header.path):
            return np.asarray(apply_modality_lut(stored, header.tags), dtype=np.float64)
    return stored.astype(np.float64) * scale.slope + scale.intercept


def _real_values(header: Header, scale: GreyScale, stored: NDArray[Any]) -> NDArray[Any]:
    """``to_real_values``; unsigned values that are real already stay as they are, which takes a fraction of the memory."""
    plain = (scale.slope, scale.intercept) == (1.0, 0.0) and not header.item("ModalityLUTSequence", 0)
    return stored.copy() if plain and stored.dtype in (np.uint8, np.uint16) else to_real_values(header, scale, stored)


def padding_mask(header: Header, layout: PixelLayout, stored: NDArray[Any]) -> NDArray[np.bool_]:
    """Which pixels are padding, ``(H, W)``: PixelPaddingValue, or anything from there to PixelPaddingRangeLimit."""
    floats = stored.dtype.kind == "f"
    first = header.number("FloatPixelPaddingValue" if floats else "PixelPaddingValue")
    if first is None:
        return np.zeros(stored.shape, dtype=bool)
    last = header.number("FloatPixelPaddingRangeLimit" if floats else "PixelPaddingRangeLimit")
    ends = [first, first if last is None else last]
    if layout.signed and not floats:  # some write it as unsigned
        ends = [v - 2**layout.stored if 2 ** (layout.stored - 1) <= v < 2**layout.stored else v for v in ends]
    return np.asarray((stored >= min(ends)) & (stored <= max(ends)))


def frame_image(header: Header, rescale: Header, voi: Header, measures: Header, max_pixels: int = MAX_PIXELS) -> Image:
    """The one frame of a file as an image; the other headers are its functional groups, if the file is enhanced."""
    layout = pixel_layout(header, max_pixels)
    claim_pixels(layout.rows * layout.columns)
    stored = decode(header, layout)
    spacing = next((found for tag in SPACINGS if (found := measures.numbers(tag, 2) or header.numbers(tag, 2))), (1.0, 1.0))
    if min(spacing) <= 0:
        raise UserError(f"{header.path}: its PixelSpacing is not above zero; {DAMAGED}")
    window: Window | None = None
    if layout.photometric in GREY:
        pixels, window = _grey(header, layout, grey_scale(header, rescale, voi), voi, stored)
        same = not layout.signed and stored.dtype.kind != "f" and np.array_equal(pixels[:, :, 0], stored)
        bits = bit_depth(layout) if same else 32  # real values have no stored range
    else:
        pixels, bits = _colour(header, layout, stored)
    if pixels.dtype.kind == "f" and not all(np.isfinite(rows).all() for rows in row_blocks(pixels)):
        raise UserError(f"{header.path}: contains NaN or infinite pixels; replace them before use")
    if pixels.min() == pixels.max():
        raise UserError(f"{header.path}: every pixel has the value {pixels.flat[0]:g}; there is nothing to see, remove the file")
    kept = pixels if pixels.dtype in (np.uint8, np.uint16) else pixels.astype(np.float32)
    return Image(kept, bits, header.path, window, (spacing[0], spacing[1]))


def _grey(
    header: Header, layout: PixelLayout, scale: GreyScale, voi: Header, stored: NDArray[Any]
) -> tuple[NDArray[Any], Window | None]:
    real, window = _real_values(header, scale, stored), scale.window
    if window is None and layout.stored <= 8 and not layout.signed:
        window = tuple(sorted(end * scale.slope + scale.intercept for end in (0.0, 2.0**layout.stored - 1.0)))  # type: ignore[assignment]
    if lut := header.item("VOILUTSequence", 0):
        from pydicom.pixels.processing import apply_voi

        with user_errors(header.path):
            real = apply_voi(np.rint(real).astype(np.int32), header.tags).astype(np.float64)
            window = (0.0, 2.0 ** lut.numbers("LUTDescriptor", 3)[2] - 1.0)
    elif window is not None and scale.window is not None and voi.words("VOILUTFunction")[:1] == ("SIGMOID",):
        centre, width = (window[0] + window[1]) / 2, window[1] - window[0]
        real, window = 1.0 / (1.0 + np.exp(np.clip(-4.0 * (real - centre) / width, -80.0, 80.0))), (0.0, 1.0)
    if layout.sign < 0:
        real, window = -real.astype(np.float64), (-window[1], -window[0]) if window else None
    pad = padding_mask(header, layout, stored)
    if pad.any() and not pad.all():
        real[pad] = real[~pad].min()
    return real[:, :, None], window


def _colour(header: Header, layout: PixelLayout, stored: NDArray[Any]) -> tuple[NDArray[Any], int]:
    if layout.photometric == "PALETTE COLOR":
        from pydicom.pixels.processing import apply_color_lut

        with user_errors(header.path):
            stored = apply_color_lut(stored, header.tags)[:, :, :3]
        stored = stored >> 8 if stored.dtype.itemsize == 2 and stored.max() > 255 else stored
        bits = 8
    else:
        bits = bit_depth(layout)
    same = bool((stored[..., 0] == stored[..., 1]).all() and (stored[..., 0] == stored[..., 2]).all())
    return stored[:, :, :1] if same else stored, bits
