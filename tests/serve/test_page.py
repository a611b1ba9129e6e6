"""The page in a real browser, against a real server: from an upload to the exported review."""

import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from serve_page import SIZE, Watched, brightness_bundle, browsing, coloured, in_image, phantom, png, save_healthy, save_volume
from servers import Server, serving


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Healthy images, and a model of them."""
    root = tmp_path_factory.mktemp("page")
    data = save_healthy(root / "data" / "healthy")
    brightness_bundle(data, root / "models" / "bright")
    save_volume(root / "volume.nii.gz")
    return root / "models", root / "data"


@pytest.fixture(scope="module")
def server(folders: tuple[Path, Path]) -> Iterator[Server]:
    with serving("--models", folders[0], "--data", folders[1], "--max-upload", "8M") as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as found:
        yield found


@pytest.fixture
def watched(browser: Any, server: Server) -> Iterator[Watched]:
    found = Watched(browser, server.url)
    yield found
    found.close()


@pytest.fixture(scope="module")
def job(server: Server) -> str:
    """Two brains with lesions, one without, and a file that is no image."""
    files = [(f"lesion-{s}.png", png(phantom(s).pixels)) for s in (101, 103)]
    healthy = ("healthy.png", png(phantom(200, abnormal=False).pixels))
    identifier = server.submit(*files, healthy, ("broken.png", b"no picture"), model="bright")
    server.ended(identifier)
    return identifier


def names(watched: Watched) -> list[str]:
    found: list[str] = watched.page.locator(".case .case-name").all_inner_texts()
    return found


def chosen(watched: Watched) -> str:
    text: str = watched.page.locator('.case[aria-selected="true"] .case-name').inner_text()
    return text


def test_from_an_upload_to_the_exported_review(watched: Watched) -> None:
    page, lesion = watched.open(), phantom(101)
    assert page.get_by_text("For research only; not a medical device").first.is_visible()
    files = [{"name": "lesion.png", "mimeType": "image/png", "buffer": png(lesion.pixels)}]
    files.append({"name": "healthy.png", "mimeType": "image/png", "buffer": png(phantom(200, abnormal=False).pixels)})
    page.set_input_files("#files", files)
    page.wait_for_url("**/#/jobs/**")
    page.get_by_role("option", name="lesion.png").click()
    page.locator(".findings .jump").first.wait_for()

    shown = watched.pixels()
    places = in_image(coloured(shown), SIZE, SIZE)
    assert len(places) > 1000
    assert lesion.mask[places[:, 0], places[:, 1]].mean() > 0.8  # the edge is blurred by enlarging
    _threshold_recolours_without_a_request(watched, shown)
    _review_is_exported(watched)


def _threshold_recolours_without_a_request(watched: Watched, shown: NDArray[np.uint8]) -> None:
    page = watched.page
    before = len(watched.requests)
    page.locator(".threshold").fill("200")  # far below the calibrated threshold
    lower = watched.pixels()
    page.locator(".threshold").fill("1000")
    higher = watched.pixels()
    page.get_by_role("button", name="Back to the calibrated threshold").click()
    np.testing.assert_array_equal(watched.pixels(), shown)
    page.keyboard.press("o")
    assert 0 < coloured(watched.pixels()).sum() < coloured(shown).sum()
    page.keyboard.press("o")
    assert coloured(lower).sum() > 2 * coloured(shown).sum()
    assert coloured(higher).sum() == 0
    assert watched.requests[before:] == []


def _review_is_exported(watched: Watched) -> None:
    page = watched.page
    page.get_by_label("Note").fill("=bright, frontal")
    page.get_by_label("Reviewer").fill("Ann")
    page.get_by_role("button", name="Rating 4 of 5").click()
    page.get_by_role("button", name="Accept").click()
    page.locator(".saved", has_text="by Ann").wait_for()
    with page.expect_download() as download:
        page.get_by_role("link", name="Reviews as CSV").click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(text))}
    assert [rows["lesion.png"][name] for name in ("verdict", "rating", "note", "reviewer")] == [
        "accept", "4", "'=bright, frontal", "Ann",
    ]  # fmt: skip
    assert rows["healthy.png"]["verdict"] == ""


def test_the_keyboard(watched: Watched, job: str) -> None:
    page = watched.open(f"jobs/{job}")
    page.locator('.case[aria-selected="true"]').wait_for()
    order = names(watched)
    assert order[-1] == "broken.png"
    assert chosen(watched) == order[0]
    page.keyboard.press("j")
    assert chosen(watched) == order[1]
    page.keyboard.press("k")
    assert chosen(watched) == order[0]
    page.locator(".findings .jump").first.wait_for()
    with_heat = watched.pixels()
    page.keyboard.press(" ")
    assert coloured(watched.pixels()).sum() == 0
    page.keyboard.press(" ")
    np.testing.assert_array_equal(watched.pixels(), with_heat)
    page.keyboard.press("2")
    assert "Accept or reject" in page.locator(".saved").inner_text()
    page.keyboard.press("r")
    page.locator('.case[aria-selected="true"] .badge.reject', has_text="2/5").wait_for()
    page.get_by_label("Note").press_sequentially("jar 5")  # letters are letters while somebody writes
    assert (chosen(watched), page.get_by_label("Note").input_value()) == (order[0], "jar 5")
    page.locator(".viewport .screen").focus()
    page.keyboard.press("?")
    page.get_by_label("Single-key shortcuts").uncheck()
    page.get_by_role("button", name="Close", exact=True).click()
    page.keyboard.press("j")
    assert chosen(watched) == order[0]


def test_window_zoom_pan_and_reset(watched: Watched, job: str) -> None:
    page = watched.open(f"jobs/{job}")
    page.locator(".findings .jump").first.wait_for()
    screen = page.locator(".viewport .screen")
    box, whole = screen.bounding_box(), watched.pixels()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    assert "heat" in page.locator(".readout").inner_text()
    page.mouse.wheel(0, -400)
    assert (watched.pixels()[:, :, 3] > 0).sum() > (whole[:, :, 3] > 0).sum()  # it fills more of the screen
    screen.dblclick()
    page.mouse.down()
    page.mouse.move(x, y + 90, steps=3)
    page.mouse.up()
    assert watched.pixels()[:, :, 0].mean() < whole[:, :, 0].mean() - 5
    page.keyboard.press("p")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y, steps=3)
    page.mouse.up()
    assert (watched.pixels()[:, :30, 3] == 0).all()
    page.keyboard.press("0")
    np.testing.assert_array_equal(watched.pixels(), whole)


def test_filters_and_refusals(watched: Watched, server: Server, job: str) -> None:
    page = watched.open(f"jobs/{job}")
    page.get_by_role("button", name="Errors").click()
    page.locator(".count", has_text="1 case").wait_for()
    watched.settle()
    assert names(watched) == ["broken.png"]
    page.locator(".case").click()
    page.get_by_text("could not be scored: broken.png: not a PNG").wait_for()
    page.get_by_role("button", name="Flagged", exact=True).click()
    page.locator(".case .badge.flagged").first.wait_for()
    watched.settle()
    flagged = {case["name"] for case in server.cases(job) if case["flag"]}
    assert set(names(watched)) == flagged
    assert 0 < len(flagged) < 4
    page = watched.open()
    page.set_input_files("#files", [{"name": "letter.txt", "mimeType": "text/plain", "buffer": b"Dear Sir"}])
    page.locator(".upload.refused", has_text="Not accepted: letter.txt").wait_for()
    assert watched.problems.pop().startswith("Failed to load resource: the server responded with a status of 422")


def test_thousands_are_a_list_of_which_only_what_is_seen_exists(watched: Watched, server: Server) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for i in range(230):
            archive.writestr(f"{i:03d}.png", png(np.full((32, 32), i, np.uint8) + np.arange(8, dtype=np.uint8).repeat(4)))
    identifier = server.submit(("many.zip", packed.getvalue()), model="bright")
    server.ended(identifier)
    page = watched.open(f"jobs/{identifier}")
    page.locator(".count", has_text="230 cases").wait_for()
    page.get_by_label("Sort by").select_option("name")
    page.locator(".case-name", has_text="many/000.png").wait_for()
    page.get_by_role("listbox").focus()
    page.keyboard.press("End")
    page.locator('.case[aria-selected="true"]', has_text="many/229.png").wait_for()
    page.keyboard.press("k")
    page.locator('.case[aria-selected="true"]', has_text="many/228.png").wait_for()
    assert page.locator(".case").count() < 40


def test_a_volume_in_three_planes(watched: Watched, server: Server, folders: tuple[Path, Path]) -> None:
    content = (folders[0].parent / "volume.nii.gz").read_bytes()
    identifier = server.submit(("volume.nii.gz", content), model="bright")
    server.ended(identifier)
    page = watched.open(f"jobs/{identifier}")
    page.locator(".findings .jump").first.wait_for()
    for plane, rows, columns in (("axial", SIZE * 2, SIZE * 2), ("coronal", 8 * 4, SIZE * 2), ("sagittal", 8 * 4, SIZE * 2)):
        full = watched.pixels(plane)[:, :, 3] == 255  # labels and the cross-hair let something through
        tall, wide = np.ptp(np.nonzero(full)[0]) + 1, np.ptp(np.nonzero(full)[1]) + 1
        assert tall / wide == pytest.approx(rows / columns, rel=0.02), plane
        assert 0 < coloured(watched.pixels(plane)).mean() < 0.2
    notes = {plane: page.locator(f'[data-plane="{plane}"] .viewport-note') for plane in ("axial", "coronal", "sagittal")}
    before = {plane: note.inner_text() for plane, note in notes.items()}
    box = page.locator('[data-plane="axial"] .screen').bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert notes["axial"].inner_text() == before["axial"]
    middle = [int(notes[plane].inner_text().split()[0]) for plane in ("coronal", "sagittal")]
    assert middle == pytest.approx([SIZE / 2 + 1] * 2, abs=1)
    page.mouse.wheel(0, 60)
    assert int(notes["axial"].inner_text().split()[0]) == int(before["axial"].split()[0]) + 1
    page.get_by_label("Axial slice").fill("0")
    assert notes["axial"].inner_text() == "1 of 8"
    page.locator(".findings .jump").first.click()
    assert {plane: note.inner_text() for plane, note in notes.items()} == before
