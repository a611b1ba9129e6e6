"""Write small ONNX files: the few fields of protobuf that a reader of weights has to understand."""

import numpy as np
from numpy.typing import NDArray


def onnx_bytes(tensors: dict[str, NDArray[np.float32]], nodes: list[tuple[str, list[str], list[str]]]) -> bytes:
    """A model with these initialisers and nodes (operator, inputs, outputs), and some fields that mean nothing here."""
    graph = b"".join(_bytes(1, _node(*node)) for node in nodes) + _bytes(2, b"main")
    graph += b"".join(_bytes(5, _tensor(name, array)) for name, array in tensors.items())
    return _number(1, 8) + _bytes(2, b"a test") + _bytes(7, graph) + _fixed(20, b"12345678")


def _node(operator: str, inputs: list[str], outputs: list[str]) -> bytes:
    named = [(1, name) for name in inputs] + [(2, name) for name in outputs] + [(4, operator)]
    return b"".join(_bytes(field, name.encode()) for field, name in named)


def _tensor(name: str, array: NDArray[np.float32]) -> bytes:
    packed = _bytes(1, b"".join(_varint(n) for n in array.shape))
    return packed + _number(2, 1) + _bytes(8, name.encode()) + _bytes(9, array.astype("<f4").tobytes())


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _fixed(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 1) + value
