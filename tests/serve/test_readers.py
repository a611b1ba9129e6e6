"""A file that ends its reader process: the process is replaced, the file tried once more, then refused."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from reshift.errors import UserError
from reshift.serve.readers import Readers


def killed_at_first(mark: Path) -> str:
    """In a reader: as the kernel does when memory runs out, but once."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "read"


@pytest.fixture
def readers() -> Iterator[Readers]:
    found = Readers(1)
    yield found
    found.close()


def test_a_killed_reader_is_replaced(readers: Readers, tmp_path: Path) -> None:
    assert asyncio.run(readers.call("a", killed_at_first, tmp_path / "mark")) == "read"
    with pytest.raises(UserError, match="ended the reader process"):
        asyncio.run(readers.call("a", os._exit, 1))
    assert asyncio.run(readers.call("a", len, "abc")) == 3
    with pytest.raises(UserError, match="'x' is not a length of time"):
        asyncio.run(readers.call("a", _refuse))


def _refuse() -> None:
    from reshift.serve.settings import parse_duration

    parse_duration("x")
