"""One table decides which metrics there are: a new row shows up everywhere, and the docs have the same table."""

import csv
import json
import re
from pathlib import Path

import pytest
from bench_cells import cell
from bench_suites import BRIGHTNESS, HEAD, IMPOSSIBLE, cells_in, write_suite
from helpers import Cli
from torch import Tensor, rand

from reshift.bench.tables import write_tables
from reshift.bench.track import scalars
from reshift.data.phantom import write_phantom
from reshift.evaluation.metrics.bootstrap import Floats, ImageDraws
from reshift.evaluation.metrics.image import ImageScores
from reshift.evaluation.metrics.one_image import LesionImage
from reshift.evaluation.metrics.pixels import PixelMetrics
from reshift.evaluation.metrics.table import METRICS, Metric, metric_lines
from reshift.evaluation.normative import NormativeIndices
from reshift.training.run import resolve, train_run

DOCS = Path(__file__).parents[2] / "docs" / "evaluation.md"
AREA = BRIGHTNESS.replace("brightness", "area") + 'group = "ours"\n'


class Pixels:
    """The simplest network for normative indices: an image is its own feature map."""

    name = "pixels"

    def maps(self, x: Tensor, side: int = 0) -> list[Tensor]:
        return [x]

    def vector(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def balanced_accuracy(images: ImageScores) -> float | None:
    tpr, fpr = images.tpr(), images.fpr()
    return None if tpr is None or fpr is None else (tpr + 1.0 - fpr) / 2.0


def drawn_balanced_accuracy(draws: ImageDraws) -> Floats:
    return (draws.tpr() + 1.0 - draws.fpr()) / 2.0


def called_share(pixels: PixelMetrics) -> float | None:
    return pixels.called / pixels.pixels if pixels.pixels else None


def called_of_image(image: LesionImage) -> float | None:
    return None if image.threshold is None else float((image.heat > image.threshold).mean())


@pytest.fixture
def extra_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a new metric needs: a row, and the functions it names."""
    rows = (
        Metric(
            "image", "balanced", "BAcc", title="Balanced accuracy", description="Mean of sensitivity and specificity.",
            value=balanced_accuracy, samples=drawn_balanced_accuracy, places=("summary", "tables", "progress"),
        ),
        Metric(
            "pixel", "called", "Called", description="Share of pixels called.", value=called_share, better="lower",
            per_image=called_of_image, places=("tables",),
        ),
        Metric("normative", "images", "images", description="Normals.", value=lambda parts: len(parts.values["mae"])),
        Metric(
            "cost", "per_minute", "images/min", description="Images per minute.", better="lower", places=("tables",), unit=1.0,
            digits=0, value=lambda cost: 60 * cost.images_per_second,
        ),
    )  # fmt: skip
    for row in rows:
        monkeypatch.setitem(METRICS, row.key, row)


@pytest.mark.usefixtures("extra_metrics")
def test_a_new_metric_is_a_row_and_its_function(run_cli: Cli, tmp_path: Path) -> None:
    data = write_phantom(tmp_path / "data", train=12, test_normal=6, test_abnormal=6, size=32)
    settings = [{"data": {"size": 32}, "calibrate": {"features": "off"}}]
    for method in ("brightness", "area"):
        bundle = train_run(resolve(method, "paper", settings), data, tmp_path / f"run-{method}")
        done = run_cli("evaluate", bundle, "--data", data, "--out", tmp_path / method)
        assert done.code == 0, done.err
        assert "balanced 0." in done.out

    metrics = json.loads((tmp_path / "area" / "metrics.json").read_text())
    value, (low, high) = metrics["image"]["balanced"], metrics["intervals"]["image"]["balanced"]
    assert value == pytest.approx((metrics["image"]["tpr"] + 1 - metrics["image"]["fpr"]) / 2)
    assert low <= value <= high
    assert 0 <= metrics["pixel"]["called"] <= 1

    page = (tmp_path / "area" / "report.html").read_text()
    assert f"<dt>Balanced accuracy</dt><dd>{value:.3f}</dd>" in page
    assert '<th scope="row">Balanced accuracy</th>' in page
    assert "Share of pixels called." in page

    assert run_cli("compare", tmp_path / "brightness", tmp_path / "area", "--out", tmp_path / "both").code == 0
    second = json.loads((tmp_path / "both" / "compare.json").read_text())["runs"][1]
    assert second["image"]["balanced"] == {"value": value, "interval": [low, high]}
    assert 0 < second["paired"]["image"]["balanced"]["p_value"] <= 1
    for name in ("compare.html", "compare.md"):
        assert "BAcc" in (tmp_path / "both" / name).read_text()


@pytest.mark.usefixtures("extra_metrics", "in_process")
def test_a_benchmark_takes_up_a_new_metric(run_cli: Cli, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, HEAD.replace("test_abnormal = 4", "test_abnormal = 12"), BRIGHTNESS, AREA, IMPOSSIBLE)
    done = run_cli("bench", suite, "--out", tmp_path / "out")
    assert done.code == 3, done.err  # the row that cannot be trained
    cells = {cell["row"]: cell for cell in cells_in(tmp_path / "out").values()}
    assert cells["Impossible"]["per_minute"] is None
    first, second = cells["brightness"], cells["area"]

    for found in (first, second):  # the cells and what is tracked of them
        value = found["metrics"]["image"]["balanced"]
        assert re.search(rf"^done brain-{found['row']}-0 in .*: AUC 0\.\d+, AP_pix 0\.\d+, BAcc {value:.3f} ", done.err, re.M)
        lesion = [share for share in found["paired"]["pixel_called"] if share is not None]
        assert len(lesion) == found["metrics"]["n"]["abnormal"]
        assert all(0 <= share <= 1 for share in lesion)
        assert found["per_minute"] == pytest.approx(60 * found["images_per_second"])
        tracked = scalars(found)
        assert (tracked["image/balanced"], tracked["cost/per_minute"]) == (value, found["per_minute"])
        assert tracked["pixel/called"] == found["metrics"]["pixel"]["called"]

    with (tmp_path / "out" / "tables.csv").open() as file:
        entries = {(row["row"], row["metric"]): row for row in csv.DictReader(file)}
    for key in ("image.balanced", "pixel.called", "cost.per_minute"):
        assert float(entries["area", key]["mean"]) == pytest.approx(METRICS[key].read_cell(second), rel=1e-5), key
    for key in ("image.balanced", "pixel.called"):  # tested against the best baseline, on the same images
        assert entries["area", key]["against"] == "brightness", key
        assert 0 < float(entries["area", key]["p_value"]) <= 1, key
    assert "AP_pix, Dice, Called: random signs" in (tmp_path / "out" / "tables.md").read_text()


@pytest.mark.usefixtures("extra_metrics")
def test_a_new_metric_has_a_column_in_benchmark_tables(tmp_path: Path) -> None:
    cells = [
        cell(row, image={"auc": 0.5, "balanced": value}, per_minute=100 * value) for row, value in (("AE", 0.4), ("VAE", 0.6))
    ]
    write_tables(cells, tmp_path)
    text = (tmp_path / "tables.md").read_text()
    assert "| method | seeds | AUC | BAcc |" in text
    assert "**60.0**" in text
    assert "**40**" in text  # lower is better
    assert r"BAcc$\uparrow$" in (tmp_path / "tables.tex").read_text()
    assert r"images/min$\downarrow$" in (tmp_path / "tables.tex").read_text()
    assert "image.balanced" in (tmp_path / "tables.csv").read_text()


@pytest.mark.usefixtures("extra_metrics")
def test_a_new_index_of_restorations_is_measured() -> None:
    indices = NormativeIndices(Pixels())
    x = rand(3, 1, 32, 32)
    indices.add_normal(x, x.flip(-1))
    found = indices.result()
    assert found["images"] == 3
    assert scalars(cell("DAE", normative=found))["normative/images"] == 3


def docs_row(m: Metric) -> str:
    heading = f"{m.heading} (1 - value)" if m.page == "complement" else m.heading if m.level in ("image", "pixel") else "–"
    interval = "yes" if m.samples or m.interval else "–"
    test = "–" if not m.samples or "tables" not in m.places else "DeLong" if m.delong else "bootstrap"
    description = f"Oracle: {m.description}" if m.oracle else m.description
    return f"| `{m.key}` | {m.caption} | {heading} | {description} | {m.better or '–'} | {interval} | {test} |"


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_the_docs_have_a_row_for_each_metric(metric: Metric) -> None:
    assert docs_row(metric) in DOCS.read_text(encoding="utf-8").splitlines(), f"docs/evaluation.md needs: {docs_row(metric)}"


def test_keys_are_unique_and_what_is_compared_can_be_computed() -> None:
    assert all(key == metric.key for key, metric in METRICS.items())
    for metric in METRICS.values():
        assert metric.value is not None, metric.key
        assert metric.needs or metric.level in ("normative", "cost"), metric.key


def test_the_command_line_prints_every_metric_that_can_be_better() -> None:
    image, pixel = metric_lines({"image": {"auc": 0.75, "threshold": 3.0}, "pixel": None})
    assert image == "image: auc 0.750, ap –, tpr –, fpr –, f1 –, f1_max –"
    assert pixel == "pixel: ap –, dice –, dice_per_image –, dice_quantile –, aupro –, dice_max –"


def test_one_value_has_one_form_in_every_place() -> None:
    assert METRICS["image.fpr"].page_text(0.25) == "75.0\u202f%"  # the report shows the specificity
    assert METRICS["image.fpr"].page_interval((0.1, 0.3)) == "70.0\u202f% – 90.0\u202f%"
    assert METRICS["image.threshold"].page_text(0.123456) == "0.1235"
    assert (METRICS["normative.rqi"].table_text(0.456), METRICS["image.auc"].table_spread(0.0123)) == ("0.46", "1.23")
