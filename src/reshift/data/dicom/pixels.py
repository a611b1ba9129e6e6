"""DICOM pixels to grey values: decode → modality rescale or LUT → VOI LUT or window → MONOCHROME1.

A linear window becomes ``Image.window``, the grey range the network sees; the values themselves are not clipped. A VOI LUT or
a sigmoid has no such range: it is applied, and its output range is the window. MONOCHROME1 (low is bright) is negated, its
window too. Padding takes the darkest value that is not padding.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.dicom.decode import decompress, stream_size
from reshift.data.dicom.header import AGAIN, Header, refusing
from reshift.data.image import Image
from reshift.errors import UserError

if TYPE_CHECKING:
    from pydicom.pixels.decoders.base import Decoder
    from pydicom.uid import UID

MAX_PIXELS = 100_000_000  # of one frame; more is a mistake or an attack
MAX_VOXELS = 1_000_000_000  # of all frames
MIN_SIDE = 16  # below this nothing is left to look at
GREY = ("MONOCHROME1", "MONOCHROME2")
COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_RCT", "YBR_ICT", "YBR_PARTIAL_420")
SPACINGS = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing")
_EXTRA = "pip install 'reshift[dicom]'"
_FLOATS = {"FloatPixelData": 32, "DoubleFloatPixelData": 64}

Window = tuple[float, float]


class Layout(NamedTuple):
    """What a header says of its pixels; slices of one volume must agree in it."""

    rows: int
    columns: int
    samples: int
    allocated: int
    stored: int
    signed: bool
    photometric: str

    @property
    def dark(self) -> int:
        """1 where low values are dark, -1 where they are bright."""
        return -1 if self.photometric == "MONOCHROME1" else 1


class Tone(NamedTuple):
    """How stored values become real ones, and which range of those is meant to be seen."""

    slope: float
    intercept: float
    window: Window | None


def layout(header: Header) -> Layout:
    """Check the sizes a header claims, before anything is decoded or allocated."""
    path, rows, columns, frames = header.path, header.integer("Rows"), header.integer("Columns"), frame_count(header)
    if min(rows, columns) < MIN_SIDE:
        raise UserError(
            f"{path}: Rows × Columns is {rows}×{columns}, too small; at least {MIN_SIDE}×{MIN_SIDE} is needed; remove it"
        )
    if "MOSAIC" in header.words("ImageType"):
        raise UserError(f"{path}: is a mosaic of many slices in one picture (ImageType); convert the series, with dcm2niix say")
    samples = header.integer("SamplesPerPixel", 1)
    if rows * columns > MAX_PIXELS or rows * columns * frames * samples > MAX_VOXELS:
        size = f"Rows × Columns × NumberOfFrames is {rows}×{columns}×{frames}"
        raise UserError(f"{path}: {size}, over the limit of {MAX_VOXELS:,} values; refused unread, cut it into pieces")
    allocated = header.integer("BitsAllocated")
    stored = header.integer("BitsStored", allocated)
    if allocated not in (8, 16, 32, 64) or not 1 <= stored <= allocated:
        raise UserError(f"{path}: BitsAllocated {allocated} with BitsStored {stored} is not a grey or colour image; remove it")
    if header.integer("HighBit", stored - 1) != stored - 1:
        raise UserError(f"{path}: its HighBit is not BitsStored - 1, which DICOM no longer allows; export it again")
    photometric = (header.words("PhotometricInterpretation") or ("",))[0]
    if photometric not in (*GREY, "PALETTE COLOR") * (samples == 1) + COLOUR * (samples == 3):
        known = photometric if photometric in (*GREY, *COLOUR, "PALETTE COLOR") else "missing or unknown"
        raise UserError(f"{path}: PhotometricInterpretation is {known} with SamplesPerPixel {samples}; export it as grey or RGB")
    return Layout(rows, columns, samples, allocated, stored, header.integer("PixelRepresentation", 0) == 1, photometric)


def depth(plan: Layout) -> int:
    """The depth that stored values are scaled by: 8, 16, or 32 for what has no range to speak of."""
    return 8 if plan.stored <= 8 else 16 if plan.stored <= 16 else 32


def frame_count(header: Header) -> int:
    """The number of frames; a file that does not say has one."""
    frames = header.integer("NumberOfFrames", 1)
    if frames < 1:
        raise UserError(f"{header.path}: NumberOfFrames is {frames}; {AGAIN}")
    return frames


def decode(header: Header, plan: Layout, frame: int = 0) -> NDArray[Any]:
    """One frame's stored values, ``(H, W)`` or ``(H, W, 3)`` RGB; unused high bits do not count."""
    from pydicom.uid import RLELossless

    path, syntax = header.path, _syntax(header)
    decoder = _decoder(header, plan, syntax)
    name = next((tag for tag in ("PixelData", *_FLOATS) if header.value(tag) is not None), None)
    if name is None:
        raise UserError(f"{path}: has no PixelData; it is not an image, or was exported without its pixels")
    if syntax.is_encapsulated and syntax != RLELossless:
        array = decompress(_stream(header, plan, frame), _options(header, plan, syntax))
    else:
        array = _in_place(header, plan, frame, decoder, name)
    if array is None:
        raise UserError(f"{path}: its PixelData ({syntax.name}) cannot be decoded; {AGAIN}")
    if array.shape != (plan.rows, plan.columns, 3)[: 3 if plan.samples == 3 else 2]:
        raise UserError(f"{path}: its PixelData is not of the size that Rows and Columns give; {AGAIN}")
    return np.asarray(array)


def _in_place(header: Header, plan: Layout, frame: int, decoder: "Decoder", name: str) -> NDArray[Any] | None:
    """Native and RLE pixels are decoded by pydicom itself."""
    if not decoder.UID.is_encapsulated:
        _check_length(header, plan, name)
    try:
        with refusing(header.path):
            return np.asarray(decoder.as_array(header.tags, index=frame)[0])
    except UserError:
        return None


def _options(header: Header, plan: Layout, syntax: "UID") -> dict[str, Any]:
    """What a decoder has to know, and nothing of the patient."""
    return {
        "transfer_syntax_uid": str(syntax),
        "rows": plan.rows,
        "columns": plan.columns,
        "samples_per_pixel": plan.samples,
        "photometric_interpretation": plan.photometric,
        "bits_allocated": plan.allocated,
        "bits_stored": plan.stored,
        "pixel_representation": int(plan.signed),
        "planar_configuration": header.integer("PlanarConfiguration", 0),
        "pixel_keyword": "PixelData",
        "number_of_frames": 1,
    }


def _syntax(header: Header) -> "UID":
    with refusing(header.path):
        meta = getattr(header.tags, "file_meta", None)
        syntax = meta.get("TransferSyntaxUID") if meta is not None else None
    if syntax is None:
        raise UserError(f"{header.path}: has no TransferSyntaxUID, so its pixels cannot be told apart; export it again")
    if not syntax.is_transfer_syntax or syntax.is_private:
        raise UserError(f"{header.path}: its TransferSyntaxUID is unknown; export it as Explicit VR Little Endian")
    return syntax  # type: ignore[no-any-return]


def _decoder(header: Header, plan: Layout, syntax: "UID") -> "Decoder":
    from pydicom.pixels.decoders import gdcm
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.uid import JPEGExtended12Bit

    if syntax == JPEGExtended12Bit and plan.stored > 8:
        what = f"is compressed with {syntax.name} at {plan.stored} bits"
        raise UserError(f"{header.path}: {what}, which no decoder here reads; export it uncompressed")

    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise UserError(f"{header.path}: {syntax.name} is not for pictures; export it as Explicit VR Little Endian") from None
    if not decoder.is_available:
        help_ = f"run {_EXTRA}" if syntax in gdcm.DECODER_DEPENDENCIES else "export it uncompressed"
        raise UserError(f"{header.path}: is compressed with {syntax.name}, and no decoder for it is installed; {help_}")
    return decoder


def _check_length(header: Header, plan: Layout, name: str) -> None:
    values = plan.rows * plan.columns * plan.samples * frame_count(header)
    need = values * _FLOATS.get(name, plan.allocated) // 8
    if plan.photometric == "YBR_FULL_422":  # two pixels share their colour
        need = need * 2 // 3
    have = len(header.value(name))
    if have < need:
        raise UserError(f"{header.path}: its {name} holds {have:,} of {need:,} bytes; cut short, copy or export it again")


def _stream(header: Header, plan: Layout, frame: int) -> bytes:
    """The compressed frame. It has a size of its own, which decoders believe; it must be the header's."""
    from pydicom.encaps import get_frame

    with refusing(header.path):
        data = get_frame(header.value("PixelData"), frame, number_of_frames=frame_count(header))
        size = stream_size(data)
    if size is not None and size != (plan.rows, plan.columns):
        both = f"{size[0]}×{size[1]} within, {plan.rows}×{plan.columns} by Rows and Columns"
        raise UserError(f"{header.path}: its compressed picture has another size than the header says ({both}); {AGAIN}")
    return data


def tone(header: Header, value: Header, shown: Header) -> Tone:
    """Rescale and window; ``value`` and ``shown`` are where an enhanced file keeps them for a frame, else the header itself."""
    slope, intercept = value.number("RescaleSlope"), value.number("RescaleIntercept")
    if slope == 0:
        raise UserError(f"{header.path}: its RescaleSlope is 0, which leaves one grey value; export it again")
    window = None
    centre, width = shown.number("WindowCenter"), shown.number("WindowWidth")
    if centre is not None and width is not None:
        if shown.words("VOILUTFunction")[:1] in ((), ("LINEAR",)):  # PS3.3 C.11.2.1.2: the width counts grey levels
            centre, width = centre - 0.5, width - 1.0
        window = (centre - width / 2, centre + width / 2) if width > 0 else None
    return Tone(1.0 if slope is None else slope, intercept or 0.0, window)


def modality(header: Header, tone: Tone, stored: NDArray[Any]) -> NDArray[np.float64]:
    """Stored values → real ones (Hounsfield units, say)."""
    if header.item("ModalityLUTSequence", 0):
        from pydicom.pixels.processing import apply_modality_lut

        with refusing(header.path):
            return np.asarray(apply_modality_lut(stored, header.tags), dtype=np.float64)
    return stored.astype(np.float64) * tone.slope + tone.intercept


def padding(header: Header, plan: Layout, stored: NDArray[Any]) -> NDArray[np.bool_]:
    """Which pixels are padding, ``(H, W)``: PixelPaddingValue, or anything from there to PixelPaddingRangeLimit."""
    floats = stored.dtype.kind == "f"
    first = header.number("FloatPixelPaddingValue" if floats else "PixelPaddingValue")
    if first is None:
        return np.zeros(stored.shape, dtype=bool)
    last = header.number("FloatPixelPaddingRangeLimit" if floats else "PixelPaddingRangeLimit")
    ends = [first, first if last is None else last]
    if plan.signed and not floats:  # written as unsigned by some
        ends = [v - 2**plan.stored if 2 ** (plan.stored - 1) <= v < 2**plan.stored else v for v in ends]
    return np.asarray((stored >= min(ends)) & (stored <= max(ends)))


def picture(header: Header, value: Header, shown: Header, measures: Header) -> Image:
    """One frame of one file as an image; the other headers are where an enhanced file keeps what applies to the frame."""
    plan = layout(header)
    stored = decode(header, plan)
    spacing = next((found for tag in SPACINGS if (found := measures.numbers(tag, 2) or header.numbers(tag, 2))), (1.0, 1.0))
    if min(spacing) <= 0:
        raise UserError(f"{header.path}: its PixelSpacing is not above zero; {AGAIN}")
    window: Window | None = None
    if plan.photometric in GREY:
        pixels, window = _grey(header, plan, tone(header, value, shown), shown, stored)
        same = np.array_equal(pixels[:, :, 0], stored) and not plan.signed and stored.dtype.kind != "f"
        bits = depth(plan) if same else 32  # real values have no stored range
    else:
        pixels, bits = _colour(header, plan, stored)
    if not np.isfinite(pixels).all():
        raise UserError(f"{header.path}: contains NaN or infinite pixels; replace them before use")
    if pixels.min() == pixels.max():
        raise UserError(f"{header.path}: every pixel has the value {pixels.flat[0]:g}; there is nothing to see, remove the file")
    return Image(pixels.astype(np.float32), bits, header.path, window, (spacing[0], spacing[1]))


def _grey(header: Header, plan: Layout, tone: Tone, shown: Header, stored: NDArray[Any]) -> tuple[NDArray[Any], Window | None]:
    real, window = modality(header, tone, stored), tone.window
    if window is None and plan.stored <= 8 and not plan.signed:
        window = tuple(sorted(end * tone.slope + tone.intercept for end in (0.0, 2.0**plan.stored - 1.0)))  # type: ignore[assignment]
    if lut := header.item("VOILUTSequence", 0):
        from pydicom.pixels.processing import apply_voi

        with refusing(header.path):
            real = apply_voi(np.rint(real).astype(np.int32), header.tags).astype(np.float64)
            window = (0.0, 2.0 ** lut.numbers("LUTDescriptor", 3)[2] - 1.0)
    elif window is not None and tone.window is not None and shown.words("VOILUTFunction")[:1] == ("SIGMOID",):
        centre, width = (window[0] + window[1]) / 2, window[1] - window[0]
        real, window = 1.0 / (1.0 + np.exp(np.clip(-4.0 * (real - centre) / width, -80.0, 80.0))), (0.0, 1.0)
    if plan.dark < 0:
        real, window = -real, (-window[1], -window[0]) if window else None
    pad = padding(header, plan, stored)
    if pad.any() and not pad.all():
        real[pad] = real[~pad].min()
    return real[:, :, None], window


def _colour(header: Header, plan: Layout, stored: NDArray[Any]) -> tuple[NDArray[Any], int]:
    if plan.photometric == "PALETTE COLOR":
        from pydicom.pixels.processing import apply_color_lut

        with refusing(header.path):
            stored = apply_color_lut(stored, header.tags)[:, :, :3]
        stored = stored >> 8 if stored.dtype.itemsize == 2 and stored.max() > 255 else stored
        bits = 8
    else:
        bits = depth(plan)
    same = bool((stored[..., 0] == stored[..., 1]).all() and (stored[..., 0] == stored[..., 2]).all())
    return stored[:, :, :1] if same else stored, bits
