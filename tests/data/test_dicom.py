"""DICOM pixels: every step from stored bits to grey values follows the standard; every refusal is one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from dicom_files import SECRETS, change, ct, grey, values, write
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset
from pydicom.uid import (
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from reshift.data.dicom.series import read_dicom
from reshift.data.image import Image
from reshift.errors import UserError


def image(ds: Dataset, folder: Path) -> Image:
    read = read_dicom(write(ds, folder / "a.dcm"))
    assert isinstance(read, Image)
    return read


def plane(ds: Dataset, folder: Path) -> Any:
    return image(ds, folder).pixels[:, :, 0]


def shipped(name: str) -> Path:
    found = get_testdata_file(name, download=False)
    if found is None:
        pytest.skip(f"pydicom does not ship {name}")
    return Path(str(found))


def shipped_image(name: str) -> Image:
    read = read_dicom(shipped(name))
    assert isinstance(read, Image)
    return read


def refusal(path: Path) -> str:
    """The one line that refuses ``path``; it says nothing about the patient."""
    with pytest.raises(UserError) as err:
        read_dicom(path)
    text = str(err.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert not any(part in text for secret in SECRETS for part in secret.split("^"))
    return text.removeprefix(f"{path}: ")


# ---- stored bits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [8, 10, 12, 16, 32])
@pytest.mark.parametrize("signed", [False, True])
def test_stored_values_of_every_depth(tmp_path: Path, stored: int, signed: bool) -> None:
    low, high = (-(2 ** (stored - 1)), 2 ** (stored - 1)) if signed else (0, 2**stored)
    pixels = values(1, low=low, high=high)
    read = image(grey(pixels, stored=stored, signed=signed), tmp_path)
    np.testing.assert_array_equal(read.pixels[:, :, 0], pixels.astype(np.float32))
    narrow = np.uint8 if stored == 8 else np.uint16
    assert read.pixels.dtype == (np.float32 if signed or stored == 32 else narrow)
    assert read.bits == (8 if stored == 8 and not signed else 16 if stored <= 16 and not signed else 32)


@pytest.mark.parametrize("signed", [False, True])
def test_unused_high_bits_do_not_count(tmp_path: Path, signed: bool) -> None:
    pixels = values(2, low=-2048 if signed else 0, high=2048)
    junk = np.random.default_rng(5).integers(0, 16, pixels.shape) << 12
    ds = grey(pixels, stored=12, signed=signed)
    ds.PixelData = ((pixels & 0xFFF) | junk).astype("<u2").tobytes()
    np.testing.assert_array_equal(plane(ds, tmp_path), pixels)


def test_float_pixels(tmp_path: Path) -> None:
    pixels = (values(3) / 7 - 90).astype("<f4")
    ds = grey(pixels, stored=32)
    del ds.PixelData, ds.BitsStored, ds.HighBit, ds.PixelRepresentation
    ds.FloatPixelData = pixels.tobytes()
    read = image(ds, tmp_path)
    np.testing.assert_array_equal(read.pixels[:, :, 0], pixels)
    assert read.bits == 32
    pixels[3, 3] = np.nan
    assert "NaN or infinite" in refusal(write(change(ds, FloatPixelData=pixels.tobytes()), tmp_path / "nan.dcm"))


# ---- rescale, window, inversion, padding -----------------------------------------------------------------------------


@pytest.mark.parametrize(("slope", "intercept"), [(1, -1024), (0.25, 3.5), (-2, 10)])
@pytest.mark.parametrize("stored", [8, 12])
def test_rescale(tmp_path: Path, slope: float, intercept: float, stored: int) -> None:
    pixels = values(4, high=2**stored)
    ds = grey(pixels, stored=stored, RescaleSlope=slope, RescaleIntercept=intercept)
    read = image(ds, tmp_path)
    np.testing.assert_allclose(read.pixels[:, :, 0], pixels * slope + intercept, rtol=1e-6)
    if stored == 8:  # the range its 256 levels stand for
        assert read.window == tuple(sorted((intercept, 255 * slope + intercept)))


def test_modality_lut(tmp_path: Path) -> None:
    lut = (np.arange(100) ** 2).astype("<u2")
    item = change(Dataset(), LUTDescriptor=[100, 50, 16], ModalityLUTType="US", LUTData=lut.tobytes())
    item["LUTData"].VR = "OW"
    pixels = values(5, high=250)
    read = plane(grey(pixels, stored=12, ModalityLUTSequence=[item]), tmp_path)
    np.testing.assert_array_equal(read, np.clip(pixels - 50, 0, 99) ** 2)


@pytest.mark.parametrize(
    ("centre", "width", "function", "expected"),
    [
        (40, 400, None, (-160, 239)),  # PS3.3 C.11.2.1.2.1: c - 0.5 ± (w - 1) / 2
        (40, 400, "LINEAR", (-160, 239)),
        (40, 400, "LINEAR_EXACT", (-160, 240)),
        ([50, 600], [351, 2000], None, (-125.5, 224.5)),  # the first of several
        (40, 1, None, None),  # a step, not a range
    ],
)
def test_a_window_is_a_range_and_clips_nothing(tmp_path: Path, centre: Any, width: Any, function: Any, expected: Any) -> None:
    ds = ct(values(6), WindowCenter=centre, WindowWidth=width)
    read = image(ds if function is None else change(ds, VOILUTFunction=function), tmp_path)
    assert read.window == expected
    np.testing.assert_array_equal(read.pixels[:, :, 0], values(6) - 1024)


def test_sigmoid_window_is_applied(tmp_path: Path) -> None:
    read = image(ct(values(7), WindowCenter=30, WindowWidth=300, VOILUTFunction="SIGMOID"), tmp_path)
    np.testing.assert_allclose(read.pixels[:, :, 0], 1 / (1 + np.exp(-4 * (values(7) - 1024 - 30) / 300)), atol=1e-6)
    assert read.window == (0, 1)


def test_voi_lut_is_applied_and_wins_over_a_window(tmp_path: Path) -> None:
    lut = np.sqrt(np.arange(2000) * 500).astype("<u2")
    item = change(Dataset(), LUTDescriptor=[2000, 0, 10], LUTData=lut.tobytes())
    item["LUTData"].VR = "OW"
    read = image(grey(values(8), stored=12, VOILUTSequence=[item], WindowCenter=3, WindowWidth=9), tmp_path)
    np.testing.assert_array_equal(read.pixels[:, :, 0], lut[values(8)])
    assert read.window == (0, 1023)


@pytest.mark.parametrize("window", [None, (600, 401)])
def test_monochrome1_is_inverted_last_together_with_its_window(tmp_path: Path, window: tuple[int, int] | None) -> None:
    tags: dict[str, Any] = {"RescaleSlope": 2, "RescaleIntercept": 5, "PhotometricInterpretation": "MONOCHROME1"}
    tags |= {"WindowCenter": window[0], "WindowWidth": window[1]} if window else {}
    read = image(grey(values(9), stored=12, **tags), tmp_path)
    np.testing.assert_array_equal(read.pixels[:, :, 0], -(values(9) * 2 + 5))
    assert read.window == ((-799.5, -399.5) if window else None)


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("signed", [False, True])
def test_padding_is_as_dark_as_the_darkest_tissue(tmp_path: Path, photometric: str, signed: bool) -> None:
    pixels = values(10, low=100, high=900)
    pixels[:5], pixels[5:7] = (-2000, -1995) if signed else (4000, 4003)
    first = -2000 if signed else 4000
    tags: dict[str, Any] = {
        "PixelPaddingValue": first,
        "PixelPaddingRangeLimit": first + 10,
        "PhotometricInterpretation": photometric,
    }
    read = plane(grey(pixels, stored=16, signed=signed, **tags), tmp_path)
    assert (read[:7] == read[7:].min()).all()
    np.testing.assert_array_equal(np.abs(read[7:]), pixels[7:])


def test_padding_written_as_unsigned(tmp_path: Path) -> None:
    pixels = values(10, low=-900, high=900)
    pixels[:5] = -2000
    ds = grey(pixels, stored=16, signed=True)
    ds.add_new("PixelPaddingValue", "US", 2**16 - 2000)
    assert plane(ds, tmp_path).min() == pixels[5:].min()


# ---- colour ----------------------------------------------------------------------------------------------------------


def test_colour_and_grey_in_three_channels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 3)).astype(np.uint8)
    ds = grey(pixels[..., 0], stored=8, SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0)
    np.testing.assert_array_equal(image(change(ds, PixelData=pixels.tobytes()), tmp_path).pixels, pixels)
    planar = change(ds, PixelData=pixels.transpose(2, 0, 1).tobytes(), PlanarConfiguration=1)
    np.testing.assert_array_equal(image(planar, tmp_path).pixels, pixels)
    pixels[..., 1] = pixels[..., 2] = pixels[..., 0]
    assert image(change(ds, PixelData=pixels.tobytes(), PlanarConfiguration=0), tmp_path).pixels.shape == (24, 20, 1)


def test_palette(tmp_path: Path) -> None:
    tables = np.random.default_rng(1).integers(0, 65536, (3, 256)).astype("<u2")
    ds = grey(values(11, high=256), stored=8, PhotometricInterpretation="PALETTE COLOR")
    for name, table in zip(("Red", "Green", "Blue"), tables, strict=True):
        setattr(ds, f"{name}PaletteColorLookupTableDescriptor", [256, 0, 16])
        setattr(ds, f"{name}PaletteColorLookupTableData", table.tobytes())
    read = image(ds, tmp_path)
    np.testing.assert_array_equal(read.pixels, (tables[:, values(11, high=256)] >> 8).transpose(1, 2, 0))
    assert read.bits == 8


@pytest.mark.parametrize(
    "name", ["SC_rgb_jpeg_dcmtk.dcm", "SC_ybr_full_422_uncompressed.dcm", "SC_rgb_jpeg_gdcm.dcm", "SC_rgb_rle.dcm"]
)
def test_ybr_is_converted_to_rgb(name: str) -> None:
    """These files show colour bars; by pydicom's description the first is red, the second green."""
    pixels = shipped_image(name).pixels
    np.testing.assert_allclose(pixels[5, 50], (255, 0, 0), atol=6)
    np.testing.assert_allclose(pixels[25, 50], (0, 255, 0), atol=6)


# ---- transfer syntaxes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["RLE", "bigendian", "expb", "implicit", "jp2klossless", "jpeg_ls_lossless", "padded"])
def test_the_same_image_in_every_encoding(name: str) -> None:
    np.testing.assert_array_equal(shipped_image(f"MR_small_{name}.dcm").pixels, shipped_image("MR_small.dcm").pixels)


@pytest.mark.parametrize(
    "name",
    [
        "JPEG2000.dcm",
        "J2K_pixelrep_mismatch.dcm",
        "693_J2KI.dcm",
        "image_dfl.dcm",
        "examples_ybr_color.dcm",
        "SC_rgb_gdcm_KY.dcm",
    ],
)
def test_shipped_files_agree_with_pydicom(name: str) -> None:
    ds = pydicom.dcmread(shipped(name))
    if ds.get("NumberOfFrames", 1) > 1:
        assert "save every frame as a separate file" in refusal(shipped(name))
        return
    expected = ds.pixel_array.astype(np.float64) * ds.get("RescaleSlope", 1) + ds.get("RescaleIntercept", 0)
    read = shipped_image(name).pixels
    seen = ds.pixel_array != ds.get("PixelPaddingValue", "none")
    np.testing.assert_array_equal(read.reshape(expected.shape)[seen], expected.astype(np.float32)[seen])


@pytest.mark.parametrize("syntax", [JPEGLosslessSV1, JPEGLSLossless, JPEG2000Lossless, RLELossless])
@pytest.mark.parametrize("stored", [8, 12, 16])
def test_lossless_compression_is_lossless(tmp_path: Path, syntax: str, stored: int) -> None:
    path = compressed(grey(values(12, high=2**stored), stored=stored), syntax, tmp_path)
    read = read_dicom(path)
    assert isinstance(read, Image)
    np.testing.assert_array_equal(read.pixels[:, :, 0], values(12, high=2**stored))


def test_baseline_jpeg_is_close(tmp_path: Path) -> None:
    smooth = np.add.outer(np.arange(24) * 5, np.arange(20) * 5)
    read = read_dicom(compressed(grey(smooth, stored=8), JPEGBaseline8Bit, tmp_path))
    assert isinstance(read, Image)
    np.testing.assert_allclose(read.pixels[:, :, 0], smooth, atol=6)


def compressed(ds: Dataset, syntax: str, folder: Path) -> Path:
    gdcm = pytest.importorskip("gdcm")
    source = write(ds, folder / "native.dcm")
    reader, change_syntax, writer = gdcm.ImageReader(), gdcm.ImageChangeTransferSyntax(), gdcm.ImageWriter()
    reader.SetFileName(str(source))
    assert reader.Read()
    change_syntax.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.GetTSType(syntax)))
    change_syntax.SetInput(reader.GetImage())
    assert change_syntax.Change()
    writer.SetFileName(str(folder / "compressed.dcm"))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change_syntax.GetOutput())
    assert writer.Write()
    return folder / "compressed.dcm"
