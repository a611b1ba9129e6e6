"""Reading PNG, JPEG and TIFF: which values are kept, and that a bad file raises one clear line and nothing else."""

import io
import os
import struct
import tracemalloc
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import noise, save
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from reshift.data.read import list_images, read_image, read_mask
from reshift.errors import UserError

COLOUR = np.stack([noise(1), noise(2), noise(3)], axis=-1)
WIDE = noise(4).astype(np.uint16) * 200
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def encoded(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(COLOUR).save(buffer, kind)
    return buffer.getvalue()


def claiming(width: int, height: int) -> bytes:
    """A PNG of a hundred bytes that says it is huge."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")


def message(path: Path) -> str:
    """The one line that refuses ``path``."""
    with pytest.raises(UserError) as refusal:
        read_image(path)
    text = str(refusal.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("name", "pixels", "bits"),
    [
        ("grey.png", noise(), 8),
        ("grey.tif", noise(), 8),
        ("wide.png", WIDE, 16),
        ("wide.tif", WIDE, 16),
        ("big-endian.tif", WIDE.astype(">u2"), 16),
        ("float.tif", noise().astype(np.float32) / 7, 32),
        ("colour.png", COLOUR, 8),
    ],
)
def test_stored_values_are_kept(tmp_path: Path, name: str, pixels: Any, bits: int) -> None:
    image = read_image(save(pixels, tmp_path / name))
    assert image.bits == bits
    assert image.pixels.dtype == pixels.dtype.newbyteorder("=")  # not widened
    np.testing.assert_array_equal(image.pixels.squeeze(-1) if pixels.ndim == 2 else image.pixels, pixels)


def test_integers_beyond_16_bits_have_no_stored_range(tmp_path: Path) -> None:
    assert read_image(save(WIDE.astype(np.int32) * 3 - 7, tmp_path / "a.tif")).bits == 32


def test_one_bit_is_black_and_white(tmp_path: Path) -> None:
    for name in ("a.png", "a.tif"):
        np.testing.assert_array_equal(read_image(save(noise() > 99, tmp_path / name)).pixels[..., 0], (noise() > 99) * 255.0)


def test_transparent_pixels_become_black(tmp_path: Path) -> None:
    alpha = np.full(noise().shape, 255, dtype=np.uint8)
    alpha[:5], alpha[5:9] = 0, 128
    pixels = read_image(save(np.dstack([COLOUR, alpha]), tmp_path / "a.png")).pixels
    assert (pixels[:5] == 0).all()
    np.testing.assert_array_equal(pixels[5:9], np.rint(COLOUR[5:9] * (128 / 255)))
    np.testing.assert_array_equal(pixels[9:], COLOUR[9:])


def test_a_transparent_grey_value_is_black(tmp_path: Path) -> None:
    for pixels in (noise(), WIDE):
        clear = int(pixels[3, 3])
        read = read_image(save(pixels, tmp_path / "a.png", transparency=clear)).pixels[..., 0]
        np.testing.assert_array_equal(read, np.where(pixels == clear, 0, pixels))


def test_palettes_are_resolved(tmp_path: Path) -> None:
    image = Image.fromarray(COLOUR).quantize(8)
    image.save(tmp_path / "a.png")
    np.testing.assert_array_equal(read_image(tmp_path / "a.png").pixels, np.asarray(image.convert("RGB")))


def test_grey_images_in_colour_files_are_grey(tmp_path: Path) -> None:
    assert read_image(save(np.dstack([noise()] * 3), tmp_path / "a.png")).pixels.shape == (24, 32, 1)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_jpeg(tmp_path: Path, mode: str) -> None:
    smooth = np.broadcast_to(np.linspace(20, 230, 32, dtype=np.uint8), (24, 32)).copy()
    Image.fromarray(smooth).convert("RGB").convert(mode).save(tmp_path / "a.jpg", quality=95)
    assert np.abs(read_image(tmp_path / "a.jpg").pixels.mean(-1) - smooth).max() < 8


def test_constant_and_tiny_images_are_refused(tmp_path: Path) -> None:
    assert "3×3" in message(save(noise(0, 3, 3), tmp_path / "small.png"))
    assert "value 7" in message(save(np.full((20, 20), 7, dtype=np.uint8), tmp_path / "flat.png"))
    for value in (np.nan, np.inf):
        pixels = noise().astype(np.float32)
        pixels[2, 2] = value
        assert "NaN or infinite" in message(save(pixels, tmp_path / "holes.tif"))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    empty, text, cut = (tmp_path / name for name in ("empty.png", "text.png", "cut.png"))
    empty.touch()
    text.write_text("patient,age\n")
    cut.write_bytes(encoded("PNG")[:-700])
    assert "0 bytes" in message(empty)
    assert "not a PNG" in message(text)
    assert "cut short" in message(cut)
    assert "no such file" in message(tmp_path / "none.png")
    assert "no DICOM images" in message(tmp_path)  # a folder is a DICOM series


def test_any_decoder_failure_is_one_line(tmp_path: Path) -> None:
    whole = bytearray(encoded("TIFF"))
    table = int.from_bytes(whole[4:8], "little")
    following = table + 2 + 12 * int.from_bytes(whole[table : table + 2], "little")
    whole[following : following + 4] = struct.pack("<I", len(whole))  # an empty second page: Pillow raises TypeError
    path = tmp_path / "a.tif"
    path.write_bytes(whole + struct.pack("<HHHIII", 1, 305, 4, 1, 0, 0))
    assert "cannot be read" in message(path)


def test_other_formats_are_refused_whatever_their_name(tmp_path: Path) -> None:
    Image.fromarray(noise()).save(tmp_path / "a.gif")
    assert "not a PNG" in message((tmp_path / "a.gif").rename(tmp_path / "a.png"))


def test_files_with_several_pages_are_refused(tmp_path: Path) -> None:
    page = Image.fromarray(noise())
    page.save(tmp_path / "stack.tif", save_all=True, append_images=[page, page])
    assert "3 pages" in message(tmp_path / "stack.tif")


@pytest.mark.parametrize("side", [10_001, 60_000, 1_000_000])
def test_a_decompression_bomb_is_refused_unread(tmp_path: Path, side: int) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(claiming(side, side))
    tracemalloc.start()
    try:
        assert "over the limit" in message(path)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_pillows_own_limit_is_not_changed(tmp_path: Path) -> None:
    before = Image.MAX_IMAGE_PIXELS
    read_image(save(noise(), tmp_path / "a.png"))
    assert before == Image.MAX_IMAGE_PIXELS is not None


def test_a_mask_is_every_pixel_above_zero(tmp_path: Path) -> None:
    drawn = np.zeros((20, 20), dtype=np.uint8)
    drawn[4:8, 5:9] = 1
    for pixels in (drawn, drawn.astype(bool), np.dstack([drawn * 0, drawn * 0, drawn])):
        np.testing.assert_array_equal(read_mask(save(pixels, tmp_path / "m.png")), drawn > 0)
    assert not read_mask(save(drawn * 0, tmp_path / "none.png")).any()


def test_listing(tmp_path: Path) -> None:
    for name in ("b.PNG", "sub/a.jpeg", "sub/.hidden.png", ".cache/c.png", "._b.png", "a.tif", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [path.relative_to(tmp_path).as_posix() for path in list_images(tmp_path)] == ["a.tif", "b.PNG", "sub/a.jpeg"]


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(path: str) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", locked)
    with pytest.raises(UserError, match="cannot be listed"):
        list_images(tmp_path)


STARTS = [b"", b"\x89PNG\r\n\x1a\n", encoded("PNG")[:40], b"\xff\xd8\xff\xe0", encoded("JPEG")[:30], b"II*\0", b"MM\0*"]


@FUZZ
@given(start=st.sampled_from(STARTS), rest=st.binary(max_size=400), suffix=st.sampled_from([".png", ".jpg", ".tif"]))
def test_random_bytes_never_raise_anything_else(tmp_path: Path, start: bytes, rest: bytes, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(start + rest)
    message(path)


@FUZZ
@given(kind=st.sampled_from(["PNG", "JPEG", "TIFF"]), data=st.data())
def test_random_damage_never_raises_anything_else(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    whole = bytearray(encoded(kind))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(0, 255))
    path = tmp_path / "x.png"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with suppress(UserError):
        assert np.isfinite(read_image(path).pixels).all()
