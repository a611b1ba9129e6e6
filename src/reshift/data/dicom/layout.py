"""How a DICOM file stores its pixels, by its header. Sizes are checked here, before anything is decoded or allocated."""

from typing import NamedTuple

from reshift.data.dicom.header import DAMAGED, Header
from reshift.data.image import MAX_PIXELS, MIN_SIDE, TOO_SMALL
from reshift.errors import UserError

MAX_VOXELS = 1_000_000_000  # of all frames together
GREY = ("MONOCHROME1", "MONOCHROME2")
COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_RCT", "YBR_ICT", "YBR_PARTIAL_420")


class PixelLayout(NamedTuple):
    """How pixels are stored; equal for all slices of a volume."""

    rows: int
    columns: int
    samples: int
    allocated: int
    stored: int
    signed: bool
    photometric: str

    @property
    def sign(self) -> int:
        """1 where low values are dark, -1 where they are bright."""
        return -1 if self.photometric == "MONOCHROME1" else 1


def pixel_layout(header: Header, max_pixels: int = MAX_PIXELS) -> PixelLayout:
    """Read the layout and check the sizes it claims, before anything is decoded or allocated."""
    path, rows, columns, frames = header.path, header.integer("Rows"), header.integer("Columns"), frame_count(header)
    if min(rows, columns) < MIN_SIDE:
        raise UserError(f"{path}: Rows × Columns is {rows}×{columns}, {TOO_SMALL}")
    if "MOSAIC" in header.words("ImageType"):
        raise UserError(f"{path}: is a mosaic of many slices in one image (ImageType); convert the series, e.g. with dcm2niix")
    samples = header.integer("SamplesPerPixel", 1)
    if rows * columns > max_pixels:
        size = f"Rows × Columns is {rows}×{columns}, over the limit of {max_pixels:,} pixels"
        raise UserError(f"{path}: {size}; refused unread, cut it into pieces, or raise data.max_pixels")
    if rows * columns * frames * samples > MAX_VOXELS:
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
    return PixelLayout(rows, columns, samples, allocated, stored, header.integer("PixelRepresentation", 0) == 1, photometric)


def bit_depth(layout: PixelLayout) -> int:
    """The depth by which stored values are scaled: 8, 16, or 32 if they have no fixed range."""
    return 8 if layout.stored <= 8 else 16 if layout.stored <= 16 else 32


def frame_count(header: Header) -> int:
    """The number of frames; 1 if the file does not say."""
    frames = header.integer("NumberOfFrames", 1)
    if frames < 1:
        raise UserError(f"{header.path}: NumberOfFrames is {frames}; {DAMAGED}")
    return frames
