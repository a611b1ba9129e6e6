"""A server on loopback that speaks as much of the model hub's API as pushing and pulling need, and misbehaves on request."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c" * 40


class Hub(ThreadingHTTPServer):
    """Repositories as ``{name: {file: bytes}}``; ``status`` or ``cut`` make answers fail."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.status = 0  # of every answer, unless 0
        self.cut = ""  # the file of which only half is sent
        self.token = ""  # that a push needs

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        """Be quiet."""

    def _answer(self, body: Any = None, status: int = 200, headers: dict[str, str] | None = None, *, head: bool = False) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if not head:
            self.wfile.write(data[: len(data) // 2] if self.server.cut and self.server.cut in self.path else data)
            if self.server.cut and self.server.cut in self.path:
                self.close_connection = True

    def do_HEAD(self) -> None:
        self.do_GET(head=True)

    def do_GET(self, *, head: bool = False) -> None:
        if self.server.status:
            return self._answer(status=self.server.status, head=head)
        parts = self.path.strip("/").split("?")[0].split("/")
        if parts[:2] == ["api", "models"]:
            files = self.server.repositories.get("/".join(parts[2:4]))
            if files is None:
                return self._answer(status=404, headers={"X-Error-Code": "RepoNotFound"})
            return self._answer({"id": "/".join(parts[2:4]), "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]})
        files = self.server.repositories.get("/".join(parts[:2]), {})
        if len(parts) < 5 or parts[2] != "resolve" or "/".join(parts[4:]) not in files:
            return self._answer(status=404, headers={"X-Error-Code": "EntryNotFound"}, head=head)
        data = files["/".join(parts[4:])]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(data).hexdigest()}"'}
        return self._answer(data, headers=headers, head=head)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.status or (self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}"):
            return self._answer(status=self.server.status or 401)
        if self.path == "/api/repos/create":
            asked = json.loads(raw)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.server.repositories.setdefault(name, {".gitattributes": b"x"})
            return self._answer({"url": f"{self.server.address}/{name}", "name": name})
        if self.path == "/api/validate-yaml":
            return self._answer({"errors": [], "warnings": []})
        repository = "/".join(self.path.split("/")[3:5])
        if "/preupload/" in self.path:
            files = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(raw)["files"]]
            return self._answer({"files": files})
        if "/commit/" in self.path:
            for line in raw.splitlines():
                item = json.loads(line)
                if item["key"] == "file":
                    content = base64.b64decode(item["value"]["content"])
                    self.server.repositories[repository][item["value"]["path"]] = content
            return self._answer({"commitUrl": f"{self.server.address}/{repository}/commit/{COMMIT}", "commitOid": COMMIT})
        return self._answer(status=404)


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Serve until the block ends."""
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
