"""Read a pickle of nested dictionaries of NumPy arrays, as JAX programs leave weights, without unpickling it.

A pickle is a program for a stack machine. Here its instructions are listed (``pickletools`` runs nothing), and those that build
dictionaries, tuples, numbers and texts are followed. Nothing is ever called or imported: the three names in the recipe of an
array are known by their text, and any other name, like any other instruction, ends the reading with a ValueError.
"""

import pickletools  # nosec B403
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]
ARRAY = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}  # renamed in NumPy 2
KNOWN = {*ARRAY, "numpy ndarray", "numpy dtype"}
PLAIN = {
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BININT",
    "BININT1",
    "BININT2",
    "BINBYTES",
    "SHORT_BINBYTES",
}  # as they are
CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Name(str):
    """What the pickle would import."""

    __slots__ = ()


class _Made:
    """An array or a type of numbers, whose state follows later."""

    def __init__(self, what: str, args: tuple[Any, ...]) -> None:
        self.what, self.args = what, args
        self.state: Any = None

    def array(self) -> NDArray[np.float32]:
        """The array; only float32 in the order of the bytes of this format is known."""
        _, shape, kind, fortran, data = self.state
        if kind.args[0] != "f4" or kind.state[1] != "<" or not isinstance(data, bytes):
            raise ValueError("an array that is not float32")
        return np.frombuffer(data, "<f4").reshape(shape, order="F" if fortran else "C")


def read_arrays(path: Path) -> Arrays:
    """Every array by its keys, ``outer/inner``; a ValueError says why the file is refused."""
    try:
        return dict(_flat(_follow(path.read_bytes()), ()))
    except ValueError:
        raise
    except Exception as err:  # an empty stack, a state of another shape: damaged in some way
        raise ValueError(f"damaged ({type(err).__name__})") from None


def _flat(tree: Any, keys: tuple[str, ...]) -> list[tuple[str, NDArray[np.float32]]]:
    if isinstance(tree, dict):
        return [pair for key, value in tree.items() for pair in _flat(value, (*keys, str(key)))]
    if not isinstance(tree, _Made) or tree.what not in ARRAY:
        raise ValueError(f"{'/'.join(keys) or 'the file'} is not an array")
    return [("/".join(keys), tree.array())]


def _follow(data: bytes) -> Any:
    """Run the instructions on a stack of plain values."""
    stack, marks, memo = list[Any](), list[int](), dict[int, Any]()
    for code, argument, _ in pickletools.genops(data):
        name = code.name
        if name == "STOP":
            return stack.pop()
        if name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if name == "MEMOIZE" else int(str(argument))] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[int(str(argument))])
        elif name in ("SETITEM", "SETITEMS"):
            at = marks.pop() if name == "SETITEMS" else len(stack) - 2
            stack[at - 1].update(zip(stack[at::2], stack[at + 1 :: 2], strict=True))
            del stack[at:]
        elif name == "TUPLE" or name in TUPLES:
            at = marks.pop() if name == "TUPLE" else len(stack) - TUPLES[name]
            stack[at:] = [tuple(stack[at:])]
        elif name not in ("PROTO", "FRAME"):
            _value(name, argument, stack)
    raise ValueError("it has no end")


def _value(name: str, argument: Any, stack: list[Any]) -> None:
    """The instructions that make one value, or complete one."""
    if name in PLAIN:
        stack.append(argument)
    elif name in CONSTANTS:
        stack.append(CONSTANTS[name])
    elif name == "EMPTY_DICT":
        stack.append({})
    elif name in ("GLOBAL", "STACK_GLOBAL"):
        wanted = str(argument) if name == "GLOBAL" else " ".join(reversed([stack.pop(), stack.pop()]))
        if wanted not in KNOWN:
            raise ValueError(f"it asks for {wanted.replace(' ', '.')}, and weights need arrays only")
        stack.append(_Name(wanted))
    elif name == "REDUCE":
        args, what = stack.pop(), stack.pop()
        if not isinstance(what, _Name):
            raise ValueError("it calls what is not a name")
        stack.append(_Made(what, args))
    elif name == "BUILD":
        state = stack.pop()
        stack[-1].state = state
    else:
        raise ValueError(f"it has the instruction {name}, and weights need arrays only")
