"""A server socket that refuses what would fill the memory: one PDU, or one instance, beyond a limit.

The library reads a PDU whole, whatever length it claims. Here every claim is checked before a byte of it is read, and the peer
gets an A-ABORT (PS3.8 9.3.8).
"""

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

MAX_PDU = 2**17  # bytes that we announce; a request for an association may be as long, too
MAX_INSTANCE = 2**30  # bytes of one instance
SECONDS = 30.0  # without a byte in the middle of a PDU
HEADER = 6  # bytes: type, reserved, length
DATA = 4  # type of a PDU with a piece of an instance
ABORT = struct.pack(">BBLBBBB", 7, 0, 4, 0, 0, 2, 6)  # by the provider, because of an invalid value


class GuardedSocket(socket.socket):
    """Follows the PDUs that are read from it."""

    def __init__(self, plain: socket.socket, log: Callable[[str], None]) -> None:
        super().__init__(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self.settimeout(SECONDS)
        self.log = log
        self.instance = 0  # bytes since the last whole instance
        self._header = b""
        self._left = 0  # bytes of the PDU that is being read

    def recv(self, size: int, flags: int = 0) -> bytes:
        """As a socket's, but a PDU that is too long ends the connection."""
        data = super().recv(size, flags)
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
            else:
                step = min(HEADER - len(self._header), len(data) - at)
                self._header += data[at : at + step]
                if len(self._header) == HEADER:
                    self._begin()
            at += step
        return data

    def _begin(self) -> None:
        kind, _, length = struct.unpack(">BBL", self._header)
        self._header, self._left = b"", length
        self.instance += length if kind == DATA else 0
        if length > MAX_PDU or self.instance > MAX_INSTANCE:
            self.log(f"refused: {'a PDU' if length > MAX_PDU else 'an instance'} larger than allowed; connection aborted")
            with suppress(OSError):
                self.sendall(ABORT)
                self.shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError


def guarded_server(log: Callable[[str], None]) -> Any:
    """The library's server with guarded sockets."""
    from pynetdicom.transport import ThreadedAssociationServer

    class GuardedServer(ThreadedAssociationServer):
        daemon_threads = True

        def get_request(self) -> tuple[socket.socket, Any]:
            plain, address = super().get_request()
            return GuardedSocket(plain, log), address

        def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (the library's own would print)
            log("refused: a connection that could not be handled")

    return GuardedServer
