"""The report page: escaped text, careful wording, fixed heat scale, bounded size, and a script that runs in a browser."""

import base64
import io
import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import run_in_browser
from numpy.typing import NDArray
from PIL import Image

from reshift.errors import UserError
from reshift.reports.page import heat_thumbnail, mask_thumbnail, thumbnail
from reshift.reports.report import Report, ReportCase, render, thumbnail_bytes, write_report

HOSTILE = '</script><img src=x onerror="alert(1)"><!-- {{config}} & \u2028'


def noise(seed: int, side: int = 40) -> NDArray[np.float32]:
    return np.random.default_rng(seed).random((side, side), dtype=np.float32)


def make_case(index: int, label: int | None, score: float, threshold: float | None = 0.5) -> ReportCase:
    mask = np.zeros((40, 40), dtype=bool)
    mask[10:20, 12:25] = True
    flag = None if threshold is None else score > threshold
    images = thumbnail(noise(index) * 2 - 1), heat_thumbnail(noise(index), 1.0)
    outline = mask_thumbnail(mask) if label == 1 else None
    return ReportCase(f"images/{index:02d}.png", label, score, 0.01 * index, flag, "", *images, outline)


def typical() -> Report:
    """Six normals and four abnormals; one of each is on the wrong side of 0.5."""
    normals = [make_case(i, 0, score) for i, score in enumerate((0.1, 0.2, 0.25, 0.3, 0.4, 0.6))]
    abnormals = [make_case(i + 6, 1, score) for i, score in enumerate((0.45, 0.7, 0.8, 0.9))]
    image = {"auc": 23 / 24, "ap": 0.9, "f1": 0.75, "threshold": 0.5, "fpr": 1 / 6, "tpr": 0.75, "f1_max": 0.889}
    pixel = {"ap": 0.61, "dice": 0.52, "threshold": 0.4, "dice_max": 0.58, "dice_per_image": 0.47}
    counts = {"normal": 6, "abnormal": 4, "pixels": 16000}
    return Report(
        title="Test report",
        facts={"Method": "restoration", "Data": "drawn squares"},
        metrics={"image": image, "pixel": pixel, "n": counts, "method": "m", "dataset": "d", "seed": 0, "seconds": 3.0},
        cases=normals + abnormals,
        heat_scale=1.0,
        warnings=["thresholds come from 12 normals"],
        config={"data": {"root": Path("somewhere")}, "rate": 1e-4},
    )


def bare() -> Report:
    """Nothing is known: no labels, masks, thresholds or metrics."""
    metrics: dict[str, Any] = {
        "image": dict.fromkeys(("auc", "ap", "f1", "threshold", "fpr", "tpr", "f1_max")),
        "pixel": dict.fromkeys(("ap", "dice", "threshold", "dice_max", "dice_per_image")),
        "n": {"normal": 0, "abnormal": 0, "pixels": None},
        "seconds": None,
    }
    cases = [replace(make_case(i, None, float(i), None), p_value=None, mask=None) for i in range(3)]
    cases[2] = replace(cases[2], score=None)
    return replace(typical(), metrics=metrics, cases=cases, warnings=[], facts={})


def payload(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    loaded: dict[str, Any] = json.loads(found[1])
    return loaded


def verdict(page: str) -> str:
    found = re.search(r'<p class="verdict">(.*?)</p>', page, re.DOTALL)
    assert found is not None
    return unescape(found[1]).replace("\u202f", " ")


def decode(text: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(text)))


def with_auc(auc: float, normal: int, abnormal: int) -> Report:
    base = typical()
    image = base.metrics["image"] | {"auc": auc}
    return replace(base, metrics=base.metrics | {"image": image, "n": {"normal": normal, "abnormal": abnormal}})


def test_typical_report_states_its_numbers() -> None:
    page = render(typical())
    assert verdict(page) == (
        "On 10 labelled images (6 normal, 4 abnormal), the score separates abnormal from normal images very well "
        "(AUC 0.96); at the calibrated threshold, 3 of 4 abnormal images are flagged (sensitivity 75.0 %) "
        "and 5 of 6 normal images are not (specificity 83.3 %)."
    )
    assert "<td>0.889</td>" in page
    assert page.count("<b>Oracle:</b> threshold chosen with the test labels") == 2
    assert "<li>thresholds come from 12 normals</li>" in page
    assert "Not a medical device" in page
    assert "{{" not in page


@pytest.mark.parametrize(
    ("auc", "normal", "abnormal", "words"),
    [
        (0.51, 500, 500, "no better than chance"),
        (0.55, 2000, 2000, "only barely better than chance"),
        (0.80, 3, 3, "too few images"),
        (0.20, 100, 100, "worse than chance"),
        (0.85, 100, 100, "images well"),
    ],
)
def test_verdict_states_what_may_be_chance(auc: float, normal: int, abnormal: int, words: str) -> None:
    assert words in verdict(render(with_auc(auc, normal, abnormal)))


def test_missing_values_are_dashes_with_a_reason_never_zero() -> None:
    page = render(bare())
    assert verdict(page) == "3 images were scored; without labels, accuracy cannot be judged."
    assert page.count('class="missing"') == 4 + 7 + 9
    assert 'title="Not available: needs normal and abnormal images"' in page
    assert "0.000" not in page.split("<main>")[1].split("</table>")[0]
    assert payload(page)["cases"][2]["score"] is None
    assert verdict(render(replace(bare(), cases=[]))) == "No images were evaluated."


def test_hostile_text_stays_text() -> None:
    base = typical()
    cases = [replace(base.cases[0], name=HOSTILE, note=HOSTILE), *base.cases[1:]]
    everywhere: dict[str, Any] = {
        "title": HOSTILE,
        "facts": {HOSTILE: HOSTILE},
        "warnings": [HOSTILE],
        "config": {HOSTILE: HOSTILE},
    }
    page = render(replace(base, cases=cases, **everywhere))
    assert "<img" not in page
    assert page.count("</script>") == 2
    loaded = payload(page)
    assert loaded["cases"][0]["name"] == loaded["cases"][0]["note"] == HOSTILE
    assert loaded["config"] == {HOSTILE: HOSTILE}


def test_payload_reads_back() -> None:
    base = typical()
    loaded = payload(render(base))
    assert loaded["metrics"] == base.metrics
    assert loaded["cases"][0]["image"] == base.cases[0].image
    assert loaded["config"] == {"data": {"root": "somewhere"}, "rate": 1e-4}
    assert [case["score"] for case in loaded["cases"]] == [case.score for case in base.cases]
    assert decode(loaded["cases"][6]["mask"]).mode == "1"


def test_page_loads_nothing_from_outside() -> None:
    page = render(typical()).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//[a-z]+\.|@import|<link|<script src|url\(", page)


def test_thumbnails_shrink_until_the_page_can_be_mailed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reshift.reports.page.THUMBNAIL_BYTES", 2_100_000)  # a tenth of the real limit
    # White noise at thumbnail size is the worst case for both encoders.
    cases = [
        replace(
            make_case(i, 1, i / 20),
            image=thumbnail(noise(i, 96) * 2 - 1),
            heatmap=heat_thumbnail(noise(i + 100, 96), 1.0),
            mask=mask_thumbnail(noise(i, 96) > 0.5),
        )
        for i in range(200)
    ]
    assert thumbnail_bytes(cases) > 2_500_000
    page = render(replace(typical(), cases=cases))
    assert len(page.encode()) < 2_500_000
    assert max(decode(payload(page)["cases"][0]["heatmap"]).size) >= 48


def test_write_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "report.html"
    write_report(path, typical())
    before = path.read_text(encoding="utf-8")
    assert before == render(typical())

    def broken(self: Path, target: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(UserError, match="disk full"):
        write_report(path, bare())
    assert path.read_text(encoding="utf-8") == before
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_write_survives_names_that_are_not_utf8(tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", replace(typical(), title="scan\udce9"))
    assert "scan" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_heat_scale_is_fixed() -> None:
    quiet = np.full((8, 8), 0.25, dtype=np.float32)
    loud = quiet.copy()
    loud[0, 0], loud[0, 1], loud[0, 2], loud[0, 3] = 9.0, 0.5, -1.0, np.nan
    greys_quiet = np.asarray(decode(heat_thumbnail(quiet, 0.5)))
    greys_loud = np.asarray(decode(heat_thumbnail(loud, 0.5)))
    assert set(greys_quiet.ravel()) == {128}
    assert greys_loud[4, 4] == 128
    assert greys_loud[0, :4].tolist() == [255, 255, 0, 0]
    assert np.asarray(decode(heat_thumbnail(quiet * 0, 0.0))).max() == 0


def test_thumbnails_fit_the_side_and_keep_content() -> None:
    wide = np.zeros((50, 200), dtype=np.float32)
    assert decode(thumbnail(wide)).size == (96, 24)
    colour = np.stack([np.full((20, 20), level, dtype=np.float32) for level in (1.0, -1.0, -1.0)])
    red, green, blue = np.asarray(decode(thumbnail(colour)))[10, 10]
    assert red - max(green, blue) > 220
    assert decode(thumbnail(np.zeros((4, 20, 20), dtype=np.float32))).mode == "L"
    speck = np.zeros((512, 512), dtype=bool)
    speck[300, 200] = True
    assert np.asarray(decode(mask_thumbnail(speck))).sum() == 1


@pytest.mark.parametrize("kind", ["typical", "bare", "empty", "only normals"])
def test_page_runs_in_a_browser(kind: str, tmp_path: Path) -> None:
    full = typical()
    reports = {"typical": full, "bare": bare(), "empty": replace(bare(), cases=[])}
    report = reports.get(kind, replace(full, cases=full.cases[:6]))
    cases = [replace(case, name=HOSTILE) for case in report.cases]
    dom = run_in_browser(render(replace(report, cases=cases)), tmp_path)
    assert 'data-ready="true"' in dom
    assert "data-errors" not in dom
    assert not re.search(r"NaN|undefined|Infinity|\[object", dom)
    # Attribute values may quote a hostile name; an event handler outside of quotes would be a live one.
    assert not re.search(r"<[a-z][^<>]*\son\w+=", re.sub(r'"[^"]*"', "", dom))
    assert dom.count('<article class="case">') == len(cases)
    assert dom.count('class="curve"') == (2 if kind == "typical" else 0)


SLIDER_PROBE = """
// A browser without a screen draws few frames; a clock stands in for them.
window.requestAnimationFrame = (draw) => setTimeout(draw, 16);
const frame = () => new Promise((done) => setTimeout(done, 100));
const fire = (id, value) => { byId(id).value = value; byId(id).dispatchEvent(new Event("input")); };
const say = async (key) => {
  await frame();
  document.body.dataset[key] = JSON.stringify({
    readout: byId("readout").textContent,
    line: Number(document.querySelector("#histogram .now").getAttribute("x1")),
    point: Number(document.querySelector("#roc .point").getAttribute("cx")),
    shown: document.querySelectorAll("article.case").length,
    wide: root.scrollWidth > innerWidth,
    overlay: cards.get(report.cases[6]).overlayCanvas.toDataURL(),
  });
};
const probe = async () => {
  document.querySelector('[data-kind="fn"]').click();
  await say("before");
  fire("threshold", 0.75); fire("pixel", 250);
  await say("moved");
  byId("threshold-reset").click(); byId("overlay-reset").click();
  await say("reset");
};
new MutationObserver((_, watch) => { watch.disconnect(); probe(); }).observe(root, { attributeFilter: ["data-ready"] });
"""


def test_sliders_update_counts_curves_and_gallery(tmp_path: Path) -> None:
    dom = run_in_browser(render(typical()), tmp_path, SLIDER_PROBE)
    seen = {key: json.loads(unescape(value)) for key, value in re.findall(r'data-(before|moved|reset)="([^"]*)"', dom)}
    before, moved, reset = (seen[key] for key in ("before", "moved", "reset"))
    assert "3 of 4 abnormal flagged" in before["readout"]
    assert before["shown"] == 1
    assert "2 of 4 abnormal flagged" in moved["readout"]
    assert "6 of 6 normal not flagged" in moved["readout"]
    assert moved["shown"] == 2
    assert moved["line"] > before["line"]
    assert moved["point"] < before["point"]
    assert moved["overlay"] != before["overlay"]
    assert reset == before
    assert not before["wide"]
