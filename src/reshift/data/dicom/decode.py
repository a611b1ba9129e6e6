"""Decompress a DICOM frame in a worker process.

The decoders are C++ libraries. A damaged frame can make them abort, print to the terminal or hang. That ends only the worker,
and the caller gets None. Workers are started on first use and kept.
"""

import atexit
import contextlib
import json
import os
import subprocess  # nosec B404
import sys
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

SECONDS = 120.0  # for one frame
SECONDS_PER_FRAME = 2.0  # for many frames of one input, beside the first
MAX_MEMORY = 16 * 2**30  # bytes of address space of a worker

_all: list["Worker"] = []
_idle: list["Worker"] = []


class Worker:
    """A decoder process: it reads a line of JSON and the compressed bytes, and writes a line of JSON and the pixels."""

    def __init__(self) -> None:
        self.owner = os.getpid()  # after a fork the pipes belong to the parent
        command = [sys.executable, "-P", __file__]  # by its path, because the package may not be importable there
        self.process = subprocess.Popen(  # nosec B603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the caller only
        )
        _all.append(self)

    def decode(self, options: dict[str, Any], data: bytes, seconds: float) -> NDArray[Any] | None:
        """Return the decoded pixels, or None when the decoder refuses. A dead process raises BrokenPipeError."""
        requests, replies = self.process.stdin, self.process.stdout
        assert requests is not None
        assert replies is not None
        timer = threading.Timer(seconds, self.process.kill)
        timer.start()
        try:
            requests.write(json.dumps({**options, "length": len(data)}).encode() + b"\n" + data)
            requests.flush()
            reply = json.loads(replies.readline() or b'{"dead": true}')
            if "dead" in reply:
                raise BrokenPipeError
            if reply["dtype"] is None:
                return None
            size = int(np.prod(reply["shape"])) * np.dtype(reply["dtype"]).itemsize
            return np.frombuffer(replies.read(size), dtype=reply["dtype"]).reshape(reply["shape"])
        finally:
            timer.cancel()

    def stop(self) -> None:
        """End the process, unless it belongs to a parent of this one."""
        if self in _all:
            _all.remove(self)
        if self.owner == os.getpid():
            self.process.kill()
            with contextlib.suppress(BrokenPipeError):  # it may have died before reading everything
                self.process.communicate()


def time_limit(frames: int) -> float:
    """When to give up on an input of so many frames, by ``time.monotonic``."""
    return time.monotonic() + SECONDS + SECONDS_PER_FRAME * frames


def decompress(data: bytes, options: dict[str, Any], until: float) -> NDArray[Any] | None:
    """Decode one encapsulated frame; ``options`` are pydicom's. None means that it cannot be decoded.

    A frame that takes over ``SECONDS``, or its input longer than ``until``, raises TimeoutError.
    """
    worker: Worker | None = None
    end = min(until, time.monotonic() + SECONDS)
    try:
        worker = _free_worker()
        array = worker.decode(options, data, max(0.0, end - time.monotonic()))
        _idle.append(worker)
        return array
    except BaseException as err:
        if worker is not None:
            worker.stop()
        if isinstance(err, (OSError, ValueError)) and time.monotonic() >= end:  # killed by the timer
            raise TimeoutError from None
        if isinstance(err, (OSError, ValueError)):  # it died
            return None
        raise


def _free_worker() -> Worker:
    """An idle worker, or a new one."""
    with contextlib.suppress(IndexError):
        while True:
            worker = _idle.pop()  # atomic, so that no two threads get the same
            if worker.owner == os.getpid() and worker.process.poll() is None:
                return worker
            worker.stop()
    return Worker()


def stream_size(data: bytes) -> tuple[int, int] | None:
    """Rows and columns from a JPEG, JPEG-LS or JPEG 2000 stream; None for anything else."""
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
    for worker in _all[:]:
        worker.stop()


def main() -> None:
    """Run the worker: answer requests until the caller closes the pipe."""
    replies, devnull = os.fdopen(os.dup(1), "wb"), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)  # decoders print
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        data = sys.stdin.buffer.read(request.pop("length"))
        try:
            array = _decode(data, request)
            reply: dict[str, Any] = {"dtype": array.dtype.str, "shape": array.shape}
        except Exception:  # the caller reports it with the file name
            array, reply = np.zeros(0), {"dtype": None}
        replies.write(json.dumps(reply).encode() + b"\n" + (array.tobytes() if reply["dtype"] else b""))
        replies.flush()


def _decode(data: bytes, options: dict[str, Any]) -> NDArray[Any]:
    from pydicom.encaps import encapsulate
    from pydicom.pixels.decoders.base import get_decoder

    decoder = get_decoder(options.pop("transfer_syntax_uid"))
    array, _ = decoder.as_array(encapsulate([data]), index=0, **options)
    return array


if __name__ == "__main__":
    main()
