"""Messages between two processes of ours: plain JSON values and arrays, whole, one after the other, through a pipe."""

import json
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

LENGTH = 8  # bytes that say how long the head is


def send(pipe: BinaryIO, value: Any, arrays: Sequence[NDArray[Any]] = ()) -> None:
    """Write one message; floats arrive as they are, NaN included."""
    head = json.dumps([value, [[array.dtype.str, array.shape] for array in arrays]]).encode()
    pipe.write(len(head).to_bytes(LENGTH, "little") + head)
    for array in arrays:
        pipe.write(np.ascontiguousarray(array).data)
    pipe.flush()


def receive(pipe: BinaryIO) -> tuple[Any, list[NDArray[Any]]]:
    """Read one message; EOFError if there is none, or only a part of one."""
    value, kinds = json.loads(_exactly(pipe, int.from_bytes(_exactly(pipe, LENGTH), "little")))
    return value, [_array(pipe, np.dtype(kind), shape) for kind, shape in kinds]


def _array(pipe: BinaryIO, dtype: np.dtype[Any], shape: Sequence[int]) -> NDArray[Any]:
    return np.frombuffer(_exactly(pipe, dtype.itemsize * int(np.prod(shape))), dtype).reshape(shape)


def _exactly(pipe: BinaryIO, size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data
