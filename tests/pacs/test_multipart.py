"""Multipart answers are read exactly, however they arrive, and never taken for whole when they are not."""

import random

import pytest

from reshift.pacs.archive import IncompleteError
from reshift.pacs.multipart import boundary_of, read_parts

PARTS = [b"", b"one", b"\r\n--b", b"\r\n\r\n--bx--\r\n"[:8], bytes(range(256)) * 9]
HEADER = b"Content-Type: application/dicom\r\nContent-Length: 3"
BODY = b"".join(b"\r\n--b17\r\n" + HEADER + b"\r\n\r\n" + part for part in PARTS) + b"\r\n--b17--\r\n"


def read(body: bytes, seed: int) -> list[bytes]:
    """The parts of a body that arrives in pieces of random size."""
    chance, pieces, at = random.Random(seed), list[bytes](), 0
    while at < len(body):
        step = chance.choice((1, 2, 7, 100, 5000))
        pieces.append(body[at : at + step])
        at += step
    return [b"".join(part) for part in read_parts(pieces, b"b17")]


@pytest.mark.parametrize("seed", range(20))
def test_parts_come_out_as_they_went_in(seed: int) -> None:
    assert read(BODY, seed) == PARTS
    assert read(BODY[2:], seed) == PARTS  # without a line before the first boundary
    assert read(b"preamble" + BODY + b"epilogue", seed) == PARTS


@pytest.mark.parametrize("length", range(0, len(BODY) - 4, 13))
def test_an_answer_that_was_cut_short_is_noticed(length: int) -> None:
    with pytest.raises(IncompleteError):
        read(BODY[:length], length)


def test_a_header_without_end_is_refused() -> None:
    endless = (b"x" * 1000 for _ in range(1000))
    with pytest.raises(IncompleteError):
        list(read_parts([b"--b17\r\n", *endless], b"b17"))


@pytest.mark.parametrize(
    ("text", "boundary"),
    [
        ('multipart/related; type="application/dicom"; boundary="a b=c"', b"a b=c"),
        ("multipart/related; boundary=b17; type=application/dicom", b"b17"),
        ("application/dicom", None),
        ("", None),
        ("multipart/related", None),
    ],
)
def test_boundaries(text: str, boundary: bytes | None) -> None:
    assert boundary_of(text) == boundary
