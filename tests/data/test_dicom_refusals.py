"""Bad DICOM files are refused in one line that names the tag; no traceback, nothing about the patient."""

import os
import struct
import subprocess
import sys
import threading
import tracemalloc
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from dicom_files import PATIENT, ct, enhanced, grey, values, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydicom.pixels.decoders.base import get_decoder
from pydicom.uid import UID, HTJ2KLossless, JPEG2000Lossless, JPEGLosslessSV1, RLELossless
from test_dicom import compressed, refusal, shipped

from reshift.data.dicom import decode as dicom_decode
from reshift.data.dicom import header as dicom_header
from reshift.data.dicom.decode import stream_size
from reshift.data.dicom.header import is_dicom
from reshift.data.dicom.series import read_dicom
from reshift.data.image import Image
from reshift.errors import UserError

FUZZ = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({"Rows": None}, "has no Rows"),
        ({"Columns": None}, "has no Columns"),
        ({"BitsAllocated": None}, "has no BitsAllocated"),
        ({"PixelData": None}, "has no PixelData"),
        ({"PhotometricInterpretation": None}, "PhotometricInterpretation is missing"),
        ({"PhotometricInterpretation": "CIELAB"}, "PhotometricInterpretation is missing or unknown"),
        ({"PhotometricInterpretation": "RGB"}, "PhotometricInterpretation is RGB with SamplesPerPixel 1"),
        ({"SamplesPerPixel": 4}, "SamplesPerPixel 4"),
        ({"Rows": 3}, "Rows × Columns is 3×20, too small"),
        ({"Rows": 65535, "Columns": 65535}, "65535×65535, over the limit of 100,000,000 pixels"),
        ({"NumberOfFrames": 2**31 - 1}, "over the limit"),
        ({"NumberOfFrames": 0}, "NumberOfFrames is 0"),
        ({"NumberOfFrames": 4}, "holds 4 frames without positions"),
        ({"Rows": 25}, "its PixelData holds 960 of 1,000 bytes"),
        ({"BitsStored": 17}, "BitsStored 17"),
        ({"BitsAllocated": 12}, "BitsAllocated 12"),
        ({"HighBit": 15}, "HighBit"),
        ({"ImageType": ["ORIGINAL", "PRIMARY", "M", "MOSAIC"]}, "is a mosaic of many slices"),
        ({"RescaleSlope": 0}, "RescaleSlope is 0"),
        ({"PixelSpacing": [0.0, 1.0]}, "PixelSpacing is not above zero"),
        ({"PixelSpacing": [1.0]}, "PixelSpacing does not hold 2 finite numbers"),
    ],
    ids=str,
)
def test_one_line_with_the_name_of_the_tag(tmp_path: Path, tags: dict[str, Any], expected: str) -> None:
    assert expected in refusal(write(grey(values(), stored=12, **tags), tmp_path / "a.dcm"))


def test_files_that_are_not_dicom(tmp_path: Path) -> None:
    whole = write(ct(values()), tmp_path / "whole").read_bytes()
    for name, content, expected in (
        ("empty.dcm", b"", "0 bytes"),
        ("bare.dcm", whole[132:], "without the preamble 'DICM'"),
        ("text.dcm", b"not DICOM at all" * 50, "without the preamble 'DICM'"),
        ("cut.dcm", whole[:-7], "its PixelData holds 953 of 960 bytes"),
        ("header.dcm", whole[:400], "has no"),
    ):
        (tmp_path / name).write_bytes(content)
        assert expected in refusal(tmp_path / name)
    assert "no such file" in refusal(tmp_path / "nowhere.dcm")
    assert "not a regular file" in refusal(tmp_path)
    flat = write(grey(np.full((20, 20), 7), stored=8), tmp_path / "flat.dcm")
    assert "every pixel has the value 7" in refusal(flat)
    assert is_dicom(tmp_path / "whole")  # by its preamble
    assert is_dicom(tmp_path / "text.dcm")  # by its suffix
    assert not is_dicom(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not is_dicom(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")


@pytest.mark.parametrize(
    "name", ["rtplan.dcm", "reportsi.dcm", "waveform_ecg.dcm", "liver_1frame.dcm", "MR_truncated.dcm", "badVR.dcm"]
)
def test_shipped_files_without_an_image(name: str) -> None:
    text = refusal(shipped(name))
    assert any(tag in text for tag in ("Rows", "BitsAllocated", "PixelData", "NumberOfFrames"))


def test_every_shipped_file_is_read_or_refused() -> None:
    for path in sorted(shipped("CT_small.dcm").parent.rglob("*")):
        if path.is_file():
            with suppress(UserError):
                read_dicom(path)


def test_transfer_syntaxes_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compressed(grey(values(), stored=12), JPEGLosslessSV1, tmp_path)

    def with_syntax(uid: str) -> Path:
        ds = pydicom.dcmread(path)
        ds.file_meta.TransferSyntaxUID = UID(uid)
        ds.save_as(tmp_path / "b.dcm", implicit_vr=False, little_endian=True)
        return tmp_path / "b.dcm"

    assert "TransferSyntaxUID is unknown" in refusal(with_syntax("1.2.3.4.5"))
    assert "High-Throughput JPEG 2000" in (text := refusal(with_syntax(str(HTJ2KLossless))))
    assert "export it uncompressed" in text
    assert "at 12 bits, which no decoder here reads" in refusal(shipped("JPGExtended.dcm"))

    monkeypatch.setattr(get_decoder(JPEGLosslessSV1), "_available", {})
    assert "JPEG Lossless" in (text := refusal(path))
    assert "pip install 'reshift[dicom]'" in text


def test_a_missing_transfer_syntax(tmp_path: Path) -> None:
    raw = write(ct(values()), tmp_path / "a.dcm").read_bytes()
    start = raw.index(b"\x02\x00\x10\x00UI")
    length = 8 + struct.unpack("<H", raw[start + 6 : start + 8])[0]
    (tmp_path / "a.dcm").write_bytes(raw[:start] + raw[start + length :])
    assert "TransferSyntaxUID" in refusal(tmp_path / "a.dcm")


# ---- size: nothing is believed before it is checked ------------------------------------------------------------------


def test_a_header_alone_allocates_nothing(tmp_path: Path) -> None:
    path = write(grey(values(), stored=12, Rows=10_000, Columns=10_000), tmp_path / "a.dcm")
    tracemalloc.start()
    refusal(path)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_a_deflated_bomb_is_not_inflated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = shipped("image_dfl.dcm").read_bytes()
    start = 132 + 12 + struct.unpack("<I", raw[140:144])[0]
    (tmp_path / "a.dcm").write_bytes(raw[:start] + zlib.compress(b"\0" * 50_000_000, wbits=-15))
    monkeypatch.setattr(dicom_header, "MAX_BYTES", 10_000_000)
    tracemalloc.start()
    assert "inflates to more than 10,000,000 bytes" in refusal(tmp_path / "a.dcm")
    assert tracemalloc.get_traced_memory()[1] < 8_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("syntax", [JPEGLosslessSV1, JPEG2000Lossless])
def test_a_stream_of_another_size_is_not_decoded(tmp_path: Path, syntax: str) -> None:
    raw = compressed(grey(values(), stored=12), syntax, tmp_path).read_bytes()
    at = raw.rindex(b"\xff\x4f\xff\x51") if syntax == JPEG2000Lossless else raw.rindex(b"\xff\xd8")
    assert stream_size(raw[at:]) == (24, 20)
    size = struct.Struct(">I" if syntax == JPEG2000Lossless else ">H")
    (tmp_path / "a.dcm").write_bytes(raw[:at] + raw[at:].replace(size.pack(24), size.pack(65520), 1))
    assert "another size than its header" in refusal(tmp_path / "a.dcm")


# ---- a decoder that dies or hangs ------------------------------------------------------------------------------------


def test_a_decoder_that_dies_fails_one_file(tmp_path: Path) -> None:
    path = compressed(grey(values(), stored=12), JPEGLosslessSV1, tmp_path)
    assert isinstance(read_dicom(path), Image)
    worker = dicom_decode._idle[-1]
    worker.process.kill()
    worker.process.wait()
    assert isinstance(read_dicom(path), Image)  # the next file starts another worker
    assert worker not in dicom_decode._all


def test_a_decoder_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compressed(grey(values(), stored=12), JPEGLosslessSV1, tmp_path)
    monkeypatch.setattr(dicom_decode, "SECONDS", 0.2)
    sleeper = "import time; time.sleep(60)"
    monkeypatch.setattr(dicom_decode, "_idle", [])
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **kw: real([sys.executable, "-c", sleeper], **kw))
    assert "takes too long to decode" in refusal(path)


def test_readers_in_many_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_all", "_idle"):  # decoders of earlier tests may still be busy
        monkeypatch.setattr(dicom_decode, name, [])
    paths = []
    for k in range(6):
        made = compressed(grey(values(k), stored=12), JPEGLosslessSV1, tmp_path / str(k))
        paths.append(made)
    found: dict[int, Any] = {}

    def read(k: int) -> None:
        found[k] = read_dicom(paths[k])

    threads = [threading.Thread(target=read, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(dicom_decode._all) == len(dicom_decode._idle) <= 6  # kept for the next threads
    for k in range(6):
        np.testing.assert_array_equal(found[k].pixels[:, :, 0], values(k))
    dicom_decode._stop_all()


# ---- fuzz ------------------------------------------------------------------------------------------------------------

DAMAGE = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=12)


def seed(kind: str, folder: Path) -> bytes:
    if kind == "enhanced":
        return write(enhanced(), folder / "seed").read_bytes()
    if kind == "ct":
        return write(ct(values(), WindowCenter=40, WindowWidth=400, PixelPaddingValue=3), folder / "seed").read_bytes()
    return compressed(grey(values(), stored=12), {"rle": RLELossless, "j2k": JPEG2000Lossless}[kind], folder).read_bytes()


@pytest.mark.parametrize("kind", ["ct", "enhanced", "rle", "j2k"])
@FUZZ
@given(damage=DAMAGE, keep=st.floats(0.1, 1.0) | st.just(1.0))
def test_damaged_bytes(tmp_path: Path, kind: str, damage: list[tuple[float, int]], keep: float) -> None:
    source = tmp_path / "whole"
    if not source.exists():
        source.write_bytes(seed(kind, tmp_path))
    raw = bytearray(source.read_bytes())
    for where, byte in damage:
        raw[int(where * len(raw))] = byte
    path = tmp_path / "damaged.dcm"
    path.write_bytes(raw[: int(keep * len(raw))])
    try:
        read = read_dicom(path)
    except UserError as err:
        text = str(err)
        assert text.startswith(f"{path}: ")
        assert "\n" not in text
        assert not any(secret in text for secret in PATIENT.values())
    else:
        assert not isinstance(read, Image) or np.isfinite(read.pixels).all()


TAGS = ("Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "SamplesPerPixel", "NumberOfFrames",
        "RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth", "PixelSpacing", "ImagePositionPatient",
        "ImageOrientationPatient", "PhotometricInterpretation", "PixelPaddingValue", "PixelData", "VOILUTFunction")  # fmt: skip
VALUES = st.none() | st.integers(0, 65535) | st.sampled_from([0.0, -1e30, 1e-30, 7.5, [1.0, 2.0], "", "MONOCHROME1", b"\0" * 960])


@FUZZ
@given(changes=st.dictionaries(st.sampled_from(TAGS), VALUES, max_size=4))
def test_missing_tags_and_unusual_values(tmp_path: Path, changes: dict[str, Any]) -> None:
    ds = ct(values(), WindowCenter=40, WindowWidth=400, PixelPaddingValue=3, NumberOfFrames=1, VOILUTFunction="LINEAR")
    for tag, value in changes.items():
        with suppress(Exception):  # pydicom refuses to write some values
            if value is None:
                del ds[tag]
            else:
                setattr(ds, tag, value)
    with suppress(Exception):  # half a file is damaged too
        write(ds, tmp_path / "a.dcm")
    if (tmp_path / "a.dcm").exists():
        with suppress(UserError):
            read_dicom(tmp_path / "a.dcm")
