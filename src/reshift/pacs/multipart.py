"""Read a multipart answer as it arrives: parts of any size in little memory, and an answer that was cut short is noticed."""

from collections.abc import Iterable, Iterator
from email.message import Message

from reshift.pacs.archive import IncompleteError

MAX_HEADER = 2**16  # bytes before the body of a part


def boundary_of(content_type: str) -> bytes | None:
    """The boundary in a Content-Type; None where the answer is not multipart."""
    message = Message()
    message["Content-Type"] = content_type
    found = message.get_param("boundary")
    multipart = message.get_content_maintype() == "multipart" and isinstance(found, str)
    return str(found).encode() if multipart else None


def read_parts(chunks: Iterable[bytes], boundary: bytes) -> Iterator[Iterator[bytes]]:
    """The body of each part, as pieces that the caller reads to the end before it asks for the next part."""
    stream, delimiter = _Stream(chunks), b"\r\n--" + boundary
    for _ in stream.until(delimiter):  # what stands before the first part is not meant for anybody
        pass
    while stream.peek(2) != b"--":
        header = 0
        for piece in stream.until(b"\r\n\r\n"):
            header += len(piece)
            if header > MAX_HEADER:
                raise IncompleteError
        yield stream.until(delimiter)


class _Stream:
    """The bytes of the answer, with a search for what ends a piece of it."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.chunks = iter(chunks)
        self.data = bytearray(b"\r\n")  # the first boundary has no line before it

    def peek(self, count: int) -> bytes:
        """The next bytes, which stay where they are."""
        while len(self.data) < count:
            self._more()
        return bytes(self.data[:count])

    def until(self, mark: bytes) -> Iterator[bytes]:
        """Everything before ``mark``, in pieces; the mark itself is taken out."""
        while (at := self.data.find(mark)) < 0:
            sure = len(self.data) - len(mark) + 1  # the mark may have begun after that
            if sure > 0:
                yield bytes(self.data[:sure])
                del self.data[:sure]
            self._more()
        yield bytes(self.data[:at])
        del self.data[: at + len(mark)]

    def _more(self) -> None:
        chunk = next(self.chunks, None)
        if chunk is None:
            raise IncompleteError
        self.data += chunk
