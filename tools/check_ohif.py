"""Look at a mask in the OHIF viewer: is it listed, and do coloured pixels lie where it is? Saves what Chromium shows.

    pip install playwright                                           # its own browsers are not needed
    python tools/check_ohif.py http://127.0.0.1:3000 runs/walk/scores --png ohif.png

After the walk of docs/pacs.md, while the viewer is served. Prints the intersection over union of the coloured pixels and the mask
projected to the screen, and the distance of their centroids in image pixels.
"""

import io
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydicom import dcmread

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    *("--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"),
)
SLICE = 15  # instance number of the slice to look at
TITLE = "Reshift anomaly mask"


def main() -> None:
    """Look, compare and report."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("viewer")
    parser.add_argument("scores", type=Path)
    parser.add_argument("--png", type=Path, default=Path("ohif.png"))
    given = parser.parse_args()
    shown, box = look(given.viewer)
    Image.open(io.BytesIO(shown)).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(given.png, optimize=True)
    compare(np.asarray(Image.open(io.BytesIO(shown)).convert("RGB")).astype(int), box, mask_of(given.scores))


def look(address: str) -> tuple[bytes, dict[str, float]]:
    """A picture of the page with the mask over the chosen slice, and where the slice is drawn on it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1200, "height": 640})
        page.goto(address)
        page.get_by_text("PHANTOM-1").first.click(timeout=60_000)
        page.get_by_text("Segmentation", exact=True).first.click()
        page.get_by_text(TITLE).first.wait_for(timeout=60_000)
        page.wait_for_timeout(8_000)
        page.get_by_text(TITLE).first.dblclick()
        page.wait_for_timeout(8_000)
        if page.get_by_text("Yes", exact=True).count():
            page.get_by_text("Yes", exact=True).first.click()
        page.get_by_text("Anomaly", exact=True).last.wait_for(timeout=60_000)
        page.wait_for_timeout(5_000)
        box: Any = page.locator("canvas").first.bounding_box()
        assert box is not None
        scroll_to(page, box)
        shown = page.screenshot()
        browser.close()
    return shown, box


def scroll_to(page: Any, box: dict[str, float]) -> None:
    """Press the arrow key until the left view shows the chosen slice."""
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] - 70)
    for _ in range(60):
        if f"I:{SLICE} (" in page.evaluate("document.body.innerText").replace("\n", "").replace("I: ", "I:"):
            break
        page.keyboard.press("ArrowDown")
        page.wait_for_timeout(1_000)
    page.wait_for_timeout(2_000)


def mask_of(scores: Path) -> NDArray[np.bool_]:
    """The plane of the segmentation that lies at the chosen slice of the phantom series."""
    found = dcmread(next(scores.rglob("mask.dcm")))
    planes = found.pixel_array.reshape(-1, found.Rows, found.Columns)
    heights = [float(frame.PlanePositionSequence[0].ImagePositionPatient[2]) for frame in found.PerFrameFunctionalGroupsSequence]
    return np.asarray(np.any(planes[[k for k, z in enumerate(heights) if z == 3.0 * (SLICE - 1)]], axis=0))


def compare(page: NDArray[np.int64], box: dict[str, float], mask: NDArray[np.bool_]) -> None:
    """The image fills the width of its view and is centred in its height."""
    x, y, width, height = (int(box[name]) for name in ("x", "y", "width", "height"))
    view = page[y : y + height, x : x + width]
    coloured = view[..., 0] - np.maximum(view[..., 1], view[..., 2]) > 40
    scale, above = width / mask.shape[1], (height - width) / 2
    rows, columns = ((np.mgrid[:height, :width] - np.array([above, 0])[:, None, None]) / scale).astype(int)
    inside = (rows >= 0) & (rows < mask.shape[0]) & (columns < mask.shape[1])
    expected = np.zeros_like(coloured)
    expected[inside] = mask[rows[inside], columns[inside]]
    overlap = (coloured & expected).sum() / (coloured | expected).sum()
    apart = np.hypot(*(np.mean(np.nonzero(coloured), axis=1) - np.mean(np.nonzero(expected), axis=1))) / scale
    print(f"coloured {coloured.sum()} pixels, mask {expected.sum()}; IoU {overlap:.2f}, centroids {apart:.2f} image pixels apart")


if __name__ == "__main__":
    main()
