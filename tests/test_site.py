"""The site is built strictly, loads nothing from other hosts, and every picture has a text for those who cannot see it."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OWN = ("href", "src", "srcset", "data-src")


class Elements(HTMLParser):
    """All elements with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_built_and_can_be_searched(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert pages <= {entry["location"].partition("#")[0] or "index.html" for entry in index["docs"]}


def test_nothing_comes_from_another_host(site: Path) -> None:
    """Links may lead elsewhere; fonts, styles, scripts and pictures may not."""
    for page in site.rglob("*.html"):
        for tag, attributes in Elements(page.read_text()).found:
            outside = [attributes[name] for name in OWN if str(attributes.get(name)).startswith(("http:", "https:", "//"))]
            assert tag == "a" or not outside, (page.name, tag, outside)
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.findall(r"url\(['\"]?(?:https?:)?//", styles)


def test_pictures_have_texts(site: Path) -> None:
    images = [
        (page.name, attributes)
        for page in site.rglob("*.html")
        for tag, attributes in Elements(page.read_text()).found
        if tag == "img" and attributes.get("alt") != "logo"
    ]
    assert len(images) >= 8
    assert not [(name, image) for name, image in images if len(image.get("alt") or "") < 10]


def test_the_reference_is_made_from_docstrings(site: Path) -> None:
    from reshift.inference.model import Model

    said = (Model.predict.__doc__ or "").partition(":")[0]
    assert said in (site / "api.html").read_text()


def test_links_out_of_the_docs_become_names(site: Path) -> None:
    assert "<code>examples/linear_dae.py</code>" in (site / "add-a-method.html").read_text()
