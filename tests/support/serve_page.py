"""The page of ``reshift serve`` in a real browser: opened, watched for anything unexpected, and read pixel by pixel."""

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from browser import find_browser
from numpy.typing import NDArray
from PIL import Image
from volumes import canonical_affine, save_nifti, stored

from reshift.data.phantom import Phantom, draw

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")
SIZE = 64
READ = """(plane) => document.querySelector(`[data-plane="${plane}"] canvas`).toDataURL("image/png")"""


@contextmanager
def browsing() -> Iterator[Any]:
    """A headless browser; the test is skipped, with the reason, where there is none."""
    path = find_browser()
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


class Watched:
    """A page, and everything that should not happen on it: errors, warnings of the policy, requests to other hosts."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.url, self.host = url, urlsplit(url).netloc
        self.context = browser.new_context(accept_downloads=True, **{"viewport": {"width": 1300, "height": 760}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)  # busy machines
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.pending: set[Any] = set()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", self._requested)
        for end in ("requestfinished", "requestfailed"):
            self.page.on(end, self._ended)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _requested(self, request: Any) -> None:
        parts = urlsplit(request.url)
        self.requests.append(f"{parts.path}?{parts.query}")
        if not parts.path.endswith("/events"):  # a stream, which ends with its job
            self.pending.add(request)
        if parts.scheme in ("http", "https") and parts.netloc != self.host:
            self.problems.append(f"a request to {request.url}")

    def _ended(self, request: Any) -> None:
        self.pending.discard(request)

    def open(self, route: str = "") -> Any:
        """Show a view of the page."""
        self.page.goto(f"{self.url}#/{route}")
        return self.page

    def settle(self) -> None:
        """Wait until what was asked for has arrived and is drawn."""
        quiet = 0
        while quiet < 3:
            self.page.wait_for_timeout(30)
            quiet = 0 if self.pending else quiet + 1
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def pixels(self, plane: str = "axial") -> NDArray[np.uint8]:
        """What a viewport shows, ``(rows, columns, RGBA)``."""
        self.settle()
        packed = base64.b64decode(self.page.evaluate(READ, plane).partition(",")[2])
        return np.asarray(Image.open(io.BytesIO(packed)).convert("RGBA"))

    def close(self) -> None:
        """End, and fail if anything unexpected has happened."""
        self.context.close()
        assert not self.problems, self.problems


def coloured(pixels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Pixels that are not grey."""
    colours = pixels[:, :, :3].astype(int)
    found: NDArray[np.bool_] = colours.max(axis=2) - colours.min(axis=2) > 40
    return found


def in_image(shown: NDArray[np.bool_], rows: int, columns: int) -> NDArray[np.intp]:
    """Marked pixels of a screen → (row, column) of an image that fills it, as far as its shape allows."""
    height, width = shown.shape
    scale = min(width / columns, height / rows)
    y, x = np.nonzero(shown)
    found = np.stack([(y - height / 2) / scale + rows / 2, (x - width / 2) / scale + columns / 2], axis=1).astype(int)
    return np.asarray(np.clip(found, 0, [rows - 1, columns - 1]))


def phantom(subject: int = 101, *, abnormal: bool = True, level: int = 1) -> Phantom:
    """A brain whose lesion is brighter than its tissue."""
    return draw("brain", subject, level, abnormal=abnormal, size=SIZE)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """As a file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def save_healthy(folder: Path, count: int = 24) -> Path:
    """Healthy phantoms to train on."""
    folder.mkdir(parents=True, exist_ok=True)
    for subject in range(count):
        (folder / f"{subject:03d}.png").write_bytes(png(phantom(subject, abnormal=False).pixels))
    return folder


def save_volume(path: Path) -> Path:
    """Eight slices of a brain, 4 mm apart, with a lesion in the middle ones; pixels of 2 mm."""
    slices = [phantom(abnormal=2 <= level <= 5, level=level).pixels for level in range(8)]
    voxels = np.stack(slices).astype(np.int16)
    return save_nifti(path, *stored(voxels, ((2, 1, 0), (False, True, False)), canonical_affine(voxels.shape, (4.0, 2.0, 2.0))))


def brightness_bundle(data: Path, run: Path) -> Path:
    """A bundle whose heat-map is how bright a pixel is; it needs no training."""
    from reshift.training.run import resolve, train_run

    config = resolve("brightness", "paper", [{"data": {"size": SIZE}, "calibrate": {"features": "off"}}])
    return train_run(config, data, run)
