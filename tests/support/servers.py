"""A real ``reshift serve`` on a free loopback port, for tests and load."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

LIMIT = 120.0  # seconds


class Server:
    """A server process and a client for it."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, token: str | None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # A new connection each time: on a busy machine the server may close an idle one just as it is used again.
        fresh = httpx.Limits(max_keepalive_connections=0)
        self.process, self.url = process, url
        self.http = httpx.Client(base_url=url, headers=headers, timeout=LIMIT, limits=fresh)

    def post(self, *files: tuple[str, bytes], headers: dict[str, str] | None = None, **fields: str) -> httpx.Response:
        """Upload files."""
        return self.http.post("/api/v1/jobs", data=fields, files=[("files", file) for file in files], headers=headers)

    def submit(self, *files: tuple[str, bytes], **fields: str) -> str:
        """Upload files, which must be accepted; return the job's id."""
        answer = self.post(*files, headers=None, **fields)
        assert answer.status_code == 201, answer.text
        identifier: str = answer.json()["id"]
        return identifier

    def get(self, path: str, status: int = 200, **query: Any) -> Any:
        """JSON of an endpoint under the API."""
        answer = self.http.get(f"/api/v1{path}", params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    def ended(self, job: str) -> dict[str, Any]:
        """Wait for a job's end."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            found: dict[str, Any] = self.get(f"/jobs/{job}", wait=20)
            if found["state"] not in ("queued", "running"):
                return found
        raise AssertionError("the job did not end")

    def cases(self, job: str) -> list[dict[str, Any]]:
        """The cases of a job."""
        items: list[dict[str, Any]] = self.get(f"/jobs/{job}/cases")["items"]
        return items

    def wait_ready(self) -> None:
        """Wait until a worker is up."""
        deadline = time.monotonic() + LIMIT
        while self.http.get("/ready").status_code != 200:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def kill(self) -> None:
        """As the kernel does when memory runs out."""
        self.process.kill()
        self.process.communicate()
        self.http.close()


def launch(*options: object, token: str | None = None, prelude: str = "") -> Server:
    """Start a server on a free port; it may not be ready yet."""
    program = f"{prelude}\nfrom reshift.cli.app import main; main()"
    arguments = ["serve", "--port", "0", "--device", "cpu", *(str(option) for option in options)]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://\S+", line)
    if found is None:
        raise AssertionError(f"no address in '{line}': {process.communicate()}")
    return Server(process, found[0], token)


@contextmanager
def serving(*options: object, token: str | None = None, prelude: str = "") -> Iterator[Server]:
    """A server that is ready, ended at the end."""
    server = launch(*options, token=token, prelude=prelude)
    try:
        server.wait_ready()
        yield server
    finally:
        server.http.close()
        server.process.terminate()
        server.process.communicate(timeout=LIMIT)
