"""A multipart upload, streamed to the disk as it arrives: nothing is held in memory, and every limit applies while it grows."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Any

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from reshift.serve.errors import Problem
from reshift.serve.settings import Limits
from reshift.serve.store import safe_name

MAX_FIELD = 2**16  # bytes of a form field
MAX_FIELDS = 100
MAX_HEADERS = 2**14  # bytes of the headers of one part


@dataclass
class Upload:
    """What has arrived: form fields, and files below ``folder``."""

    folder: Path
    fields: dict[str, str] = field(default_factory=dict)
    files: list[PurePosixPath] = field(default_factory=list)
    bytes: int = 0
    sha256: str = ""  # of fields, names and contents


async def receive(request: Request, folder: Path, limits: Limits) -> Upload:
    """Write the files of a ``multipart/form-data`` request below ``folder``; refuse it as soon as it passes a limit."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise Problem(415, "send multipart/form-data with one or more parts 'files'")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limits.upload_bytes + MAX_FIELDS * MAX_FIELD:
        raise _too_large(limits)
    parts = _Parts(folder, limits)
    parser = MultipartParser(boundary, parts.callbacks())
    try:
        async for chunk in _chunks(request):
            parser.write(chunk)
        parser.finalize()
    except MultipartParseError as err:
        raise Problem(400, f"the upload is not valid multipart/form-data ({err}); send it again") from None
    finally:
        parts.close()
    if not parts.ended:
        raise Problem(400, "the upload ended before its last part; send it again")
    return parts.result()


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise Problem(400, "the client went away before the upload was complete") from None


def _too_large(limits: Limits) -> Problem:
    return Problem(
        413, f"more than {limits.upload_bytes / 2**20:,.0f} MiB in one job; send several, or put the data on the server"
    )


class _Parts:
    """The parser's callbacks: a part is a small field or a file."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.upload, self.limits, self.digest = Upload(folder), limits, hashlib.sha256()
        self.header, self.value, self.headers = b"", b"", dict[str, bytes]()
        self.name, self.text, self.file, self.ended = "", bytearray(), None, False  # type: str, bytearray, FileIO | None, bool

    def callbacks(self) -> Any:
        """By the names that the parser knows."""
        return {
            "on_part_begin": self._begin, "on_header_field": self._header_name, "on_header_value": self._header_value,
            "on_header_end": self._header_end, "on_headers_finished": self._open, "on_part_data": self._data,
            "on_part_end": self._end, "on_end": self._finish,
        }  # fmt: skip

    def result(self) -> Upload:
        """Everything that has arrived, with its hash."""
        self.upload.sha256 = self.digest.hexdigest()
        return self.upload

    def close(self) -> None:
        """Let go of a file that was cut short."""
        if self.file is not None:
            self.file.close()

    def _begin(self) -> None:
        self.headers, self.header, self.value = {}, b"", b""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self.header += data[start:end]
        self._bound(self.header)

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self.value += data[start:end]
        self._bound(self.value)

    def _bound(self, text: bytes) -> None:
        if len(text) > MAX_HEADERS or len(self.headers) > 20:
            raise Problem(400, "a part of the upload has too long a header")

    def _header_end(self) -> None:
        self.headers[self.header.decode("latin-1").lower()] = self.value
        self.header, self.value = b"", b""

    def _open(self) -> None:
        _, options = parse_options_header(self.headers.get("content-disposition", b""))
        self.name = options.get(b"name", b"").decode("utf-8", "replace")
        given = options.get(b"filename")
        if given is None:
            if len(self.upload.fields) >= MAX_FIELDS:
                raise Problem(400, "the form has too many fields")
            self.text = bytearray()
            return
        if self.name != "files":
            raise Problem(422, f"'{self.name[:40]}' is not a field for files; send them as 'files'")
        if len(self.upload.files) >= self.limits.files:
            raise Problem(413, f"more than {self.limits.files:,} files in one job; send several jobs")
        self._open_file(given.decode("utf-8", "replace"))

    def _open_file(self, given: str) -> None:
        name = safe_name(given)
        taken, count, folder = set(self.upload.files), 1, self.upload.folder
        while name in taken or (folder / name).exists() or any((folder / up).is_file() for up in name.parents):
            count += 1
            name = PurePosixPath(f"{count}~{name.name}") if count > 2 else name.with_name(f"{count}~{name.name}")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        self.file = FileIO(folder / name, "xb")
        self.upload.files.append(name)
        self.digest.update(b"\0file\0" + str(name).encode())

    def _data(self, data: bytes, start: int, end: int) -> None:
        part = data[start:end]
        self.digest.update(part)
        if self.file is None:
            self.text += part
            if len(self.text) > MAX_FIELD:
                raise Problem(413, f"the field '{self.name[:40]}' is too long")
            return
        self.upload.bytes += len(part)
        if self.upload.bytes > self.limits.upload_bytes:
            raise _too_large(self.limits)
        while part:  # unbuffered: a nearly full disk accepts a part first
            part = part[self.file.write(part) or 0 :]

    def _end(self) -> None:
        if self.file is None:
            self.digest.update(b"\0field\0" + self.name.encode("utf-8", "replace"))
            self.upload.fields[self.name] = self.text.decode("utf-8", "replace")
            return
        self.file.close()
        self.file = None

    def _finish(self) -> None:
        self.ended = True
