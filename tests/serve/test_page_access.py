"""The page for everybody: with a token, by any eyes and on any screen, in both themes, over a bad connection; and trainings."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import labelled
from serve_page import Watched, brightness_bundle, browsing, coloured, phantom, png, save_healthy, save_volume
from servers import Server, serving

TOKEN = "a-token-of-twenty-four-letters"
SETTINGS = "data.size = 32\ncalibrate.features = off\nmodel.epochs = 3\nmodel.width = 4\nmodel.hidden = 16\ntrain.log_every = 1"


class Site(NamedTuple):
    """A server with jobs, and a browser that is signed in."""

    server: Server
    browser: Any
    state: Any  # cookies
    image: str
    volume: str

    def routes(self) -> list[str]:
        """One of each view."""
        return ["", f"jobs/{self.image}", f"jobs/{self.volume}", "models", "models/bright", "trainings", "evaluations"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("access")
    brightness_bundle(save_healthy(root / "data" / "healthy"), root / "models" / "bright")
    labelled(root / "data" / "labelled")
    (root / "tokens.txt").write_text(f"Ann {TOKEN}\n")
    volume = save_volume(root / "volume.nii.gz").read_bytes()
    options = ("--models", root / "models", "--data", root / "data", "--token-file", root / "tokens.txt")
    with serving(*options, token=TOKEN) as server, browsing() as browser:
        noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
        image = server.submit(("lesion.png", png(phantom().pixels)), ("noise.png", png(noise)), model="bright")
        jobs = image, server.submit(("volume.nii.gz", volume), model="bright")
        assert [server.ended(job)["state"] for job in jobs] == ["done", "done"]
        first = Watched(browser, server.url)
        _sign_in(first, TOKEN)
        first.page.get_by_text("Drop images").wait_for()
        state = first.context.storage_state()
        first.close()
        yield Site(server, browser, state, *jobs)


def _sign_in(watched: Watched, token: str) -> None:
    watched.open()
    watched.page.get_by_label("Token").fill(token)
    watched.page.get_by_role("button", name="Sign in").click()


def opened(site: Site, **options: Any) -> Watched:
    return Watched(site.browser, site.server.url, storage_state=site.state, **options)


def shown(watched: Watched, route: str) -> Any:
    page = watched.open(route)
    page.locator("main h1").first.wait_for()
    if route.startswith("jobs/") and page.viewport_size["width"] < 800:
        page.locator(".case").first.click()
    watched.settle()
    return page


def test_a_token_is_asked_for(site: Site) -> None:
    watched = Watched(site.browser, site.server.url)
    _sign_in(watched, "wrong")
    watched.page.get_by_text("this token is not known").wait_for()
    assert "401" in watched.problems.pop()
    watched.page.get_by_label("Token").fill(TOKEN)
    watched.page.keyboard.press("Enter")
    watched.page.get_by_text("Drop images").wait_for()
    assert watched.page.locator("#user").inner_text() == "Ann"
    watched.page.get_by_role("button", name="Sign out").click()
    watched.page.get_by_label("Token").wait_for()
    watched.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(site: Site, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed").Axe()
    watched = opened(site, color_scheme=scheme)
    found = []
    for route in site.routes():
        page = shown(watched, route)
        if not route:
            page.keyboard.press("?")
        for violation in axe.run(page).response["violations"]:
            if violation["impact"] in ("serious", "critical"):
                found += [(route, violation["id"], node["html"][:200]) for node in violation["nodes"]]
    assert found == []
    watched.close()


def test_a_narrow_screen_needs_no_sideways_scrolling(site: Site) -> None:
    watched = opened(site, viewport={"width": 320, "height": 640})
    for route in site.routes():
        page = shown(watched, route)
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, route
        assert page.get_by_text("For research only; not a medical device").first.is_visible()
    watched.close()


def test_the_theme_is_remembered(site: Site) -> None:
    watched = opened(site, color_scheme="dark")
    page = shown(watched, "")
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.get_by_role("button", name="Theme: auto").click()
    light = page.evaluate(colour)
    assert light != dark
    page.reload()
    page.get_by_role("button", name="Theme: light").click()
    assert page.evaluate(colour) == dark
    watched.close()


def test_a_lost_connection_is_said_and_tried_again(site: Site) -> None:
    watched = opened(site)
    page = shown(watched, "")
    watched.context.set_offline(True)
    page.get_by_role("link", name="Models").click()
    page.get_by_text("The server does not answer").wait_for()
    watched.context.set_offline(False)
    page.get_by_role("heading", name="Models").wait_for()
    assert page.get_by_text("The server does not answer").is_hidden()
    assert all("ERR_INTERNET_DISCONNECTED" in problem for problem in watched.problems)
    watched.problems.clear()
    watched.close()


def test_an_unlike_image_is_shown_without_its_heat_map(site: Site) -> None:
    watched = opened(site)
    page = shown(watched, f"jobs/{site.image}")
    page.get_by_role("option", name="noise.png").click()
    page.get_by_text("This image is unlike those the model has learned from").wait_for()
    assert coloured(watched.pixels()).sum() == 0
    page.get_by_role("option", name="lesion.png").click()
    page.locator(".findings .jump").first.wait_for()
    assert page.get_by_text("This image is unlike").is_hidden()
    assert coloured(watched.pixels()).sum() > 0
    watched.close()


def test_a_training_is_started_watched_and_used(site: Site) -> None:
    watched = opened(site)
    page = shown(watched, "trainings")
    page.get_by_label("Name").fill("small")
    page.get_by_label("Healthy images").fill("nowhere")
    page.get_by_label("Method").select_option("ae")
    page.get_by_label("Settings").fill(SETTINGS)
    page.get_by_role("button", name="Start").click()
    page.get_by_text("no such file or folder in the server's --data").wait_for()
    assert "422" in watched.problems.pop()
    page.get_by_label("Healthy images").fill("healthy")
    page.get_by_role("button", name="Start").click()
    page.locator(".badge.done").wait_for(timeout=300_000)
    watched.settle()
    assert page.locator(".chart .line").get_attribute("d").count("L") >= 2
    page.get_by_role("link", name="Model card").click()
    page.get_by_role("heading", name="Scores of normal images").wait_for()

    job = site.server.submit(("lesion.png", png(phantom().pixels)), model="small")
    site.server.ended(job)
    page = shown(watched, f"jobs/{job}")
    page.get_by_role("button", name="Restoration").click()
    page.locator('[data-plane="restoration"]').wait_for()
    restored = watched.pixels("restoration")
    assert (restored[:, :, 3] == 255).any()
    assert coloured(restored).sum() == 0
    page = shown(watched, f"jobs/{site.image}")  # its method restores nothing
    page.get_by_role("option", name="lesion.png").click()
    watched.settle()
    page.keyboard.press("s")
    page.get_by_text("this model's method restores no images").first.wait_for()
    assert page.get_by_role("button", name="Restoration").is_disabled()
    assert "409" in watched.problems.pop()
    watched.close()


def test_an_evaluation_has_a_report(site: Site) -> None:
    watched = opened(site)
    page = shown(watched, "evaluations")
    page.get_by_label("Labelled test images").fill("labelled")
    page.get_by_role("button", name="Evaluate").click()
    page.locator(".badge.done").wait_for(timeout=300_000)
    assert page.get_by_role("heading", name="Pixels").is_visible()
    report = page.get_by_role("link", name="Report of labelled").get_attribute("href")
    assert site.server.http.get(report).status_code == 200
    watched.close()
