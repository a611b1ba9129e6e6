"""Serve the OHIF viewer over an Orthanc on this machine, at one address, so that no cross-origin rules are in the way.

    npm pack @ohif/app && tar xzf ohif-app-*.tgz                    # package/dist is the viewer
    python tools/view_ohif.py package/dist http://127.0.0.1:8042 [--port 3000]

For a look at results on a workstation, not for a network: it listens on loopback only and has no users.
"""

import json
import mimetypes
import urllib.error
import urllib.request
from argparse import ArgumentParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = "/dicom-web"
MIME = {".js": "text/javascript", ".wasm": "application/wasm", ".css": "text/css", ".html": "text/html"}


def config() -> bytes:
    """OHIF's settings: one archive, at our own address."""
    source = {
        "namespace": "@ohif/extension-default.dataSourcesModule.dicomweb",
        "sourceName": "dicomweb",
        "configuration": {
            "friendlyName": "Orthanc",
            "name": "orthanc",
            "wadoUriRoot": ROOT,
            "qidoRoot": ROOT,
            "wadoRoot": ROOT,
            "qidoSupportsIncludeField": False,
            "imageRendering": "wadors",
            "thumbnailRendering": "wadors",
            "enableStudyLazyLoad": True,
            "supportsFuzzyMatching": False,
            "supportsWildcard": True,
            "omitQuotationForMultipartRequest": True,
            "bulkDataURI": {"enabled": True, "relativeResolution": "studies"},
        },
    }
    settings = {
        "routerBasename": "/",
        "extensions": [],
        "modes": [],
        "showStudyList": True,
        "defaultDataSourceName": "dicomweb",
        "dataSources": [source],
        "investigationalUseDialog": {"option": "never"},
        "showWarningMessageForCrossOrigin": False,
        "showCPUFallbackMessage": False,
        "maxNumberOfWebWorkers": 2,
    }
    return f"window.config = {json.dumps(settings)};".encode()


class Server(ThreadingHTTPServer):
    """The viewer's files, and everything below /dicom-web from Orthanc."""

    daemon_threads = True

    def __init__(self, viewer: Path, orthanc: str, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.viewer, self.orthanc = viewer.resolve(), orthanc.rstrip("/")


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_GET(self) -> None:
        """A file of the viewer, our settings for it, or what Orthanc answers."""
        path = self.path.split("?")[0]
        if path.startswith(ROOT):
            self._pass_on()
        elif path == "/app-config.js":
            self._answer(200, config(), "text/javascript")
        else:
            file = (self.server.viewer / path.lstrip("/")).resolve()
            inside = file.is_relative_to(self.server.viewer) and file.is_file()
            file = file if inside else self.server.viewer / "index.html"  # the viewer's own addresses
            kind = MIME.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
            self._answer(200, file.read_bytes(), kind)

    def _pass_on(self) -> None:
        headers = {"Accept": self.headers.get("Accept", "*/*")}
        try:
            with urllib.request.urlopen(  # nosec B310
                urllib.request.Request(self.server.orthanc + self.path, headers=headers), timeout=60
            ) as answer:
                self._answer(answer.status, answer.read(), answer.headers.get("Content-Type", ""))
        except urllib.error.HTTPError as err:
            self._answer(err.code, err.read(), "text/plain")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        """Addresses have UIDs."""


def main() -> None:
    """Serve until Ctrl-C."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("viewer", type=Path)
    parser.add_argument("orthanc")
    parser.add_argument("--port", type=int, default=3000)
    given = parser.parse_args()
    server = Server(given.viewer, given.orthanc, given.port)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
