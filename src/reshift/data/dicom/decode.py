"""Decompress one DICOM frame in a process of its own.

The decoders are C++ libraries, and a damaged picture can make them abort, print to the terminal, or never return. Here that
ends one helper process, and the caller gets None. The helper is started on first use and kept.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

SECONDS = 120.0  # for one frame
MEMORY = 16 * 2**30  # address space of the helper

_all: list["Helper"] = []
_idle: list["Helper"] = []  # as many as ever worked at the same time


class Helper:
    """The other process: a line of JSON and the compressed bytes in, a line of JSON and the pixels out."""

    def __init__(self) -> None:
        self.owner = os.getpid()  # after a fork the pipes belong to the parent
        command = [sys.executable, "-P", __file__]  # by its path: the package itself need not be importable there
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the caller's business
        )
        _all.append(self)

    def ask(self, options: dict[str, Any], data: bytes) -> NDArray[Any] | None:
        """Return the decoded pixels, None when the decoder refused or died."""
        wanted, given = self.process.stdin, self.process.stdout
        assert wanted is not None
        assert given is not None
        timer = threading.Timer(SECONDS, self.process.kill)
        timer.start()
        try:
            wanted.write(json.dumps({**options, "length": len(data)}).encode() + b"\n" + data)
            wanted.flush()
            reply = json.loads(given.readline() or b'{"dead": true}')
            if "dead" in reply:
                raise BrokenPipeError
            if reply["dtype"] is None:
                return None
            size = int(np.prod(reply["shape"])) * np.dtype(reply["dtype"]).itemsize
            return np.frombuffer(given.read(size), dtype=reply["dtype"]).reshape(reply["shape"])
        finally:
            timer.cancel()

    def stop(self) -> None:
        """End the process, if it is ours."""
        if self in _all:
            _all.remove(self)
        if self.owner == os.getpid():
            self.process.kill()
            with contextlib.suppress(BrokenPipeError):  # what it did not read is still on its way
                self.process.communicate()


def decompress(data: bytes, options: dict[str, Any]) -> NDArray[Any] | None:
    """Decode one encapsulated frame; ``options`` are pydicom's. None means that it cannot be decoded."""
    helper: Helper | None = None
    try:
        helper = _free()
        array = helper.ask(options, data)
        _idle.append(helper)
        return array
    except BaseException as err:
        if helper is not None:
            helper.stop()
        if isinstance(err, (OSError, ValueError)):  # it died, or was stopped after too long a time
            return None
        raise


def _free() -> Helper:
    """An idle helper, or a new one."""
    with contextlib.suppress(IndexError):
        while True:
            helper = _idle.pop()  # one step, so that no two threads get the same
            if helper.owner == os.getpid() and helper.process.poll() is None:
                return helper
            helper.stop()
    return Helper()


def stream_size(data: bytes) -> tuple[int, int] | None:
    """Rows and columns as a JPEG, JPEG-LS or JPEG 2000 stream tells them; None for anything else."""
    start = data.find(b"\xff\x4f\xff\x51", 0, 4096)
    if start >= 0 and data[:4] in (b"\xff\x4f\xff\x51", b"\0\0\0\x0c"):  # bare, or in a JP2 box
        right, bottom, left, top = (int.from_bytes(data[start + at : start + at + 4]) for at in (8, 12, 16, 20))
        return bottom - top, right - left
    at = 2
    while data[:2] == b"\xff\xd8" and at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xF7 or (0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)):
            return int.from_bytes(data[at + 5 : at + 7]), int.from_bytes(data[at + 7 : at + 9])
        at += 1 if marker == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4])
    return None


@atexit.register
def _stop_all() -> None:
    for helper in _all[:]:
        helper.stop()


def main() -> None:
    """Answer requests until the caller is gone."""
    replies, nowhere = os.fdopen(os.dup(1), "wb"), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # decoders print
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        data = sys.stdin.buffer.read(request.pop("length"))
        try:
            array = _decoded(data, request)
            reply: dict[str, Any] = {"dtype": array.dtype.str, "shape": array.shape}
        except Exception:  # whatever it is, the caller says which file
            array, reply = np.zeros(0), {"dtype": None}
        replies.write(json.dumps(reply).encode() + b"\n" + (array.tobytes() if reply["dtype"] else b""))
        replies.flush()


def _decoded(data: bytes, options: dict[str, Any]) -> NDArray[Any]:
    from pydicom.encaps import encapsulate
    from pydicom.pixels.decoders.base import get_decoder

    decoder = get_decoder(options.pop("transfer_syntax_uid"))
    array, _ = decoder.as_array(encapsulate([data]), index=0, **options)
    return array


if __name__ == "__main__":
    main()
