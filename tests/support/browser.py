"""A real browser for the pages we write; tests that want one skip, and say so, where there is none."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=5000", "--dump-dom"),
]


def find_browser() -> str:
    """The path of an installed browser; without one the test is skipped."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser found (looked for {', '.join(BROWSERS)})")
    return browser


def run_in_browser(page: str, folder: Path, probe: str = "") -> str:
    """Load the page headless and return the document as the browser left it, without script text."""
    browser = find_browser()
    if probe:
        # The page forbids foreign scripts, which would include this one.
        page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
        page = page.replace("</body>", f"<script>{probe}</script></body>")
    (folder / "page.html").write_text(page, encoding="utf-8")
    command = [browser, *FLAGS, f"--user-data-dir={folder / 'profile'}", (folder / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL)
