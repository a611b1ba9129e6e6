"""Every input that ever fell, as code that makes it. New ones are added here when they are mended."""

import io
import stat
import zipfile
from collections.abc import Iterator

from helpers import COLUMNS


def inputs() -> Iterator[tuple[str, str, bytes]]:
    """Target, what was wrong, and the input."""
    yield "manifest", "a column's name broke the message into two lines", COLUMNS.replace("im", "i\x0c").encode()
    yield "manifest", "a column's name moved the cursor", f"\x1b[2J{COLUMNS}\n".encode()
    yield "zip", "an entry's name broke the message into two lines", _zip_of_a_pipe("a\x0b\x1e\x85b")


def _zip_of_a_pipe(name: str) -> bytes:
    buffer, info = io.BytesIO(), zipfile.ZipInfo(name)
    info.external_attr = stat.S_IFIFO << 16
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(info, b"")
    return buffer.getvalue()
