"""Read the weights out of an ONNX file: just enough of protobuf for tensors and the names of a graph's nodes.

Field numbers are those of onnx.proto: a model's graph is 7; a graph's nodes 1 and initialisers 5; a node's inputs 1,
outputs 2 and operator 4; a tensor's dimensions 1, type 2, name 8 and raw bytes 9.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f4"),
    6: np.dtype("<i4"),
    7: np.dtype("<i8"),
    10: np.dtype("<f2"),
    11: np.dtype("<f8"),
}
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


class Node(NamedTuple):
    """An operator with the names of what it takes and gives."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Graph(NamedTuple):
    """What a file holds: tensors by name, and the operators in order."""

    tensors: dict[str, NDArray[np.generic]]
    nodes: list[Node]


def read_onnx(path: Path) -> Graph:
    """Read ``path``; a ValueError says what is wrong. Tensors that are not kept as raw bytes in the file are left out."""
    graphs = [value for number, value in _fields(memoryview(path.read_bytes())) if number == 7 and isinstance(value, memoryview)]
    if len(graphs) != 1:
        raise ValueError("not an ONNX model")
    tensors, nodes = dict[str, NDArray[np.generic]](), list[Node]()
    for number, value in _fields(graphs[0]):
        if number == 1:
            nodes.append(_node(_message(value)))
        elif number == 5:
            tensors |= _tensor(_message(value))
    return Graph(tensors, nodes)


def _node(data: memoryview) -> Node:
    texts: dict[int, list[str]] = {1: [], 2: [], 4: []}
    for number, value in _fields(data):
        if number in texts:
            texts[number].append(_text(value))
    return Node("".join(texts[4]), tuple(texts[1]), tuple(texts[2]))


def _tensor(data: memoryview) -> dict[str, NDArray[np.generic]]:
    shape, kind, name, raw = list[int](), 0, "", None
    for number, value in _fields(data):
        if number == 1:
            shape += [value] if isinstance(value, int) else _varints(value)
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 8:
            name = _text(value)
        elif number == 9:
            raw = _message(value)
    if raw is None or kind not in TYPES:
        return {}
    return {name: np.frombuffer(raw, TYPES[kind]).reshape(shape)}


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a message: number and value."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == BYTES:
            size, at = _varint(data, at)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise ValueError(f"unknown wire type {wire}")
        if at + size > len(data):
            raise ValueError("the file ends in the middle of a field")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("the file ends in the middle of a number")
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
    raise ValueError("a number without an end")


def _varints(data: memoryview) -> list[int]:
    found, at = list[int](), 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where a message belongs")
    return value


def _text(value: int | memoryview) -> str:
    return bytes(_message(value)).decode()
