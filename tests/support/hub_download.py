"""A hub on this machine: it speaks as much of the Hugging Face hub's HTTP as a download of one file needs."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Hub:
    """Files by path ``repo/resolve/revision/name``, and what was asked for."""

    def __init__(self) -> None:
        self.url = ""
        self.files = dict[str, bytes]()
        self.asked = list[tuple[str, str, str]]()  # method, path, range
        self.tokens = set[str | None]()
        self.cut = 0  # after so many bytes the next download ends


class Handler(BaseHTTPRequestHandler):
    """Answers for ``hub``, which a subclass sets."""

    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        """Say what a file is."""
        self._answer(send=False)

    def do_GET(self) -> None:
        """Send a file, or the rest of one."""
        self._answer(send=True)

    def log_message(self, *args: object) -> None:
        """Stay quiet."""

    def _answer(self, *, send: bool) -> None:
        hub, wanted = self.hub, self.headers.get("Range", "")
        hub.asked.append((self.command, self.path, wanted))
        hub.tokens.add(self.headers.get("Authorization"))
        data = hub.files.get(self.path.strip("/"))
        if data is None:
            self._head(404, {"X-Error-Code": "EntryNotFound", "Content-Length": "0"})
            return
        found = re.match(r"bytes=(\d+)-", wanted)
        part = data[int(found[1]) :] if found else data
        about = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": "0" * 40, "Accept-Ranges": "bytes"}
        if found:
            about["Content-Range"] = f"bytes {found[1]}-{len(data) - 1}/{len(data)}"
        self._head(206 if found else 200, {**about, "Content-Length": str(len(part))})
        if send and hub.cut:
            self.wfile.write(part[: hub.cut])
            hub.cut, self.close_connection = 0, True
        elif send:
            self.wfile.write(part)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Serve until the block ends."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
