"""Figures of scores: the right points, the right band, and one line where data are missing."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluations import changed, folder
from numpy.typing import NDArray
from PIL import Image

from reshift.errors import UserError
from reshift.evaluation.metrics.image import average_precision, curve, roc_auc
from reshift.evaluation.results import Results
from reshift.reports.figures import paper as figures


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    root = tmp_path_factory.mktemp("evaluations")
    return [folder(root, "vae", gain=0.8, features=False), folder(root, "dmd", gain=2.4)]


def points(line: Any) -> NDArray[np.float64]:
    return np.asarray(line.get_xydata(), dtype=np.float64)


def test_all_figures_are_written_and_the_missing_one_is_named(
    runs: list[Results], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["qualitative", "pixel-histogram", "roc-pr", "p-values", "tsne-dmd"]
    assert figures.all_figures(runs, tmp_path / "new") == [tmp_path / "new" / f"{name}.png" for name in names]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(f"{n}.{k}" for n in names for k in ("pdf", "png"))
    for name in names:
        assert (tmp_path / "new" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        with Image.open(tmp_path / "new" / f"{name}.png") as image:
            image.load()
            assert image.width <= 3.41 * 150  # one column
            assert np.asarray(image.convert("L")).std() > 5
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("no figure tsne-vae: ")
    assert "no image features" in lines[0]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("matplotlib", r"^figures need matplotlib: pip install 'reshift\[report\]'$"),
        ("sklearn.manifold", r"^t-SNE needs scikit-learn: pip install 'reshift\[report\]'$"),
    ],
)
def test_a_missing_package_is_one_line(runs: list[Results], module: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=line):
        figures.tsne(runs[1])


def test_roc_and_pr_are_the_curves_of_the_metrics(runs: list[Results]) -> None:
    roc, pr = figures.roc_pr(runs).axes
    for i, run in enumerate(runs):
        labels = np.array([case["label"] == 1 for case in run.cases])
        scores = np.array([case["score"] for case in run.cases])
        tp, fp, _ = curve(labels, scores)
        label = f"{run.name}: AUC {roc_auc(labels, scores):.3f}, AP {average_precision(tp, fp):.3f}"
        line = next(line for line in roc.lines if line.get_label() == label)
        np.testing.assert_allclose(points(line), np.c_[np.r_[0, fp] / 30, np.r_[0, tp] / 20])
        stairs = points([line for line in pr.lines if line.get_drawstyle() == "steps-pre"][i])
        assert (np.diff(stairs[:, 0]) * stairs[1:, 1]).sum() == pytest.approx(average_precision(tp, fp))  # the area
        flagged = np.array([case["flag"] for case in run.cases])
        hit, false = (flagged & labels).sum(), (flagged & ~labels).sum()
        for ax, at in ((roc, (false / 30, hit / 20)), (pr, (hit / 20, hit / (hit + false)))):
            dots = [points(line)[0] for line in ax.lines if line.get_marker() == "o" and len(points(line))]
            assert tuple(dots[i]) == pytest.approx(at)


def test_one_class_is_said_and_alone_refused(runs: list[Results], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    healthy = folder(tmp_path, "healthy", abnormal=0, features=False)
    assert "healthy: one class only" in figures.roc_pr([runs[0], healthy]).axes[0].get_legend_handles_labels()[1]
    texts = [text.get_text() for text in figures.pixel_histogram([runs[0], healthy]).axes[1].texts]
    assert texts == ["no lesion masks"]
    written = figures.all_figures([healthy], tmp_path / "out")
    assert [path.name for path in written] == ["p-values.png"]
    assert len(capsys.readouterr().out.splitlines()) == 4
    ill = healthy._replace(cases=[{**case, "label": 1} for case in healthy.cases])
    with pytest.raises(UserError, match="calibrate the bundle"):
        figures.p_value_calibration([ill])
    with pytest.raises(UserError, match="at least one evaluation"):
        figures.all_figures([], tmp_path)
    with pytest.raises(UserError, match="same test images"):
        figures.qualitative([])


def test_without_calibration_there_is_no_operating_point(runs: list[Results]) -> None:
    roc, _ = figures.roc_pr([changed(runs[0], image={"threshold": None})]).axes
    assert all(line.get_marker() == "None" for line in roc.lines)


def test_p_values_curve_and_band(runs: list[Results]) -> None:
    ax = figures.p_value_calibration(runs[:1]).axes[0]
    p = sorted(case["p_value"] for case in runs[0].cases if case["label"] == 0)
    line = next(line for line in ax.lines if line.get_label() == "vae (30 normals)")
    for alpha in (0.1, 0.35, 0.8):
        x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
        assert y[x <= alpha][-1] == pytest.approx(np.mean(np.array(p) <= alpha))
    assert figures._reference_size(np.array(p)) == 60  # normals in the reference of ``folder``
    assert figures._reference_size(np.random.default_rng(0).uniform(size=50)) == figures.MAX_REFERENCE


@pytest.mark.parametrize("size", [19, 99, figures.MAX_REFERENCE])
def test_band_holds_95_percent_of_calibrated_curves(size: int) -> None:
    """Against a simulation that ranks scores instead of drawing from a Beta."""
    rng, tests, alpha = np.random.default_rng(3), 50, np.array([0.0, 0.05, 0.2, 0.5, 1.0])
    low, high = figures._band(alpha, tests, size)
    assert (low[0], high[0], low[-1], high[-1]) == (0.0, 0.0, 1.0, 1.0)
    shares = []
    for _ in range(2000):
        scores = rng.uniform(size=tests)
        above = scores if size == figures.MAX_REFERENCE else (rng.uniform(size=(size, 1)) <= scores).sum(0)
        p = above if size == figures.MAX_REFERENCE else (1 + above) / (1 + size)
        shares.append([(p <= a + 1e-12).mean() for a in alpha])
    inside = ((np.array(shares) >= low - 1e-9) & (np.array(shares) <= high + 1e-9)).mean(0)
    assert (inside >= 0.935).all()  # counts are whole numbers, so the band may hold more
    shrunk = ((np.array(shares) > low + 1e-9) & (np.array(shares) < high - 1e-9)).mean(0)
    assert (shrunk[1:-1] < 0.97).all()


def test_tsne_colours_by_label_and_says_that_it_is_a_guide(runs: list[Results]) -> None:
    figure = figures.tsne(runs[1])
    ax = figure.axes[0]
    assert [len(np.asarray(dots.get_offsets())) for dots in ax.collections] == [30, 20]
    assert "visual guide only" in ax.get_title()
    line = next(line for line in ax.lines if "SVM" in str(line.get_label()))
    (x1, y1), (x2, y2) = line.get_xy1(), line.get_xy2()  # type: ignore[attr-defined]
    sides = [
        np.sign((x2 - x1) * (at[:, 1] - y1) - (y2 - y1) * (at[:, 0] - x1))
        for at in (np.asarray(dots.get_offsets()) for dots in ax.collections)
    ]
    assert abs(sides[0].mean() - sides[1].mean()) > 1.5  # the classes are well apart, and the line lies between them
    again = np.asarray(figures.tsne(runs[1]).axes[0].collections[0].get_offsets())
    np.testing.assert_array_equal(again, ax.collections[0].get_offsets())


def test_tsne_refuses_features_that_do_not_fit(runs: list[Results]) -> None:
    with pytest.raises(UserError, match="vae has no image features"):
        figures.tsne(runs[0])
    with pytest.raises(UserError, match="one finite row per case"):
        figures.tsne(runs[1]._replace(cases=runs[1].cases[1:]))


def test_sensitivity_draws_mean_and_deviation() -> None:
    curves: dict[str, list[tuple[float, list[float]]]] = {"dmd": [(500.0, [0.6, 0.7, 0.8]), (100.0, [0.5])], "none": [(1.0, [])]}
    figure = figures.sensitivity(curves, xlabel="t*", ylabel="Dice", stable=(400, 600), best=500)
    ax = figure.axes[0]
    (container,) = ax.containers
    line, _, bars = container.lines  # type: ignore[attr-defined]
    np.testing.assert_allclose(line.get_xydata(), [[100, 0.5], [500, 0.7]])
    np.testing.assert_allclose(bars[0].get_segments(), [[[100, 0.5], [100, 0.5]], [[500, 0.6], [500, 0.8]]])
    assert ax.get_xscale() == "linear"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("t*", "Dice")
    (span,) = ax.patches
    assert (span.get_x(), span.get_x() + span.get_width()) == (400, 600)  # type: ignore[attr-defined]
    assert [text.get_text().strip() for text in ax.texts] == ["stable range", "best: 500"]
    wide = figures.sensitivity({"dmd": [(0.01, [0.5]), (10.0, [0.6])]}, xlabel="λ", ylabel="Dice")
    assert wide.axes[0].get_xscale() == "log"
    with pytest.raises(UserError, match="at least one value"):
        figures.sensitivity({"none": [(1.0, [])]}, xlabel="x", ylabel="y")
