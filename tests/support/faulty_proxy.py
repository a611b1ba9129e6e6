"""A real HTTP server between us and an archive that passes requests on, except where a fault is planned."""

import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

PASSED_ON = ("Accept", "Content-Type", "Authorization")


class Fault(NamedTuple):
    """What happens to requests whose method and path match, at most ``times`` times."""

    method: str
    part: str  # of the path
    status: int = 0  # answer with it
    cut: bool = False  # send the first half of the body
    reset: bool = False  # reset the connection at once
    body: Callable[[bytes], bytes] | None = None  # change the body
    before: Callable[[], object] | None = None  # do this first, then pass it on
    times: int = 1_000_000
    end: str = ""  # of the path
    headers: tuple[tuple[str, str], ...] = ()


class FaultyProxy(ThreadingHTTPServer):
    """Forwards to ``target``; ``seen`` has every request."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.faults = list[Fault]()
        self.used = dict[int, int]()
        self.seen = list[tuple[str, str]]()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.lock = threading.Lock()

    def fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            self.seen.append((method, path))
            for i, fault in enumerate(self.faults):
                plain = path.split("?", maxsplit=1)[0]
                matches = fault.method == method and fault.part in plain and plain.endswith(fault.end)
                if matches and self.used.get(i, 0) < fault.times:
                    self.used[i] = self.used.get(i, 0) + 1
                    return fault
        return None

    def plan(self, *faults: Fault) -> None:
        self.faults, self.used, self.seen = list(faults), {}, []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def do_GET(self) -> None:
        self._handle(None)

    def do_POST(self) -> None:
        self._handle(self.rfile.read(int(self.headers["Content-Length"])))

    def _handle(self, data: bytes | None) -> None:
        fault = self.server.fault(self.command, self.path) or Fault(self.command, "")
        if fault.before:
            fault.before()
        if fault.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        if fault.status:
            self._answer(fault.status, b"Okonkwo^Adaeze was here", "text/plain", fault)
            return
        headers = {name: self.headers[name] for name in PASSED_ON if name in self.headers}
        request = urllib.request.Request(self.server.target + self.path, data=data, headers=headers, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                self._answer(answer.status, answer.read(), answer.headers.get("Content-Type", ""), fault)
        except urllib.error.HTTPError as err:
            self._answer(err.code, err.read(), "text/plain", fault)

    def _answer(self, status: int, body: bytes, kind: str, fault: Fault) -> None:
        body = fault.body(body) if fault.body else body
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in fault.headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if fault.cut else body)
        self.close_connection = self.close_connection or fault.cut

    def log_message(self, *_args: Any) -> None:
        pass


@contextmanager
def faulty_proxy(target: str) -> Iterator[FaultyProxy]:
    """Run it during the block."""
    server = FaultyProxy(target)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
