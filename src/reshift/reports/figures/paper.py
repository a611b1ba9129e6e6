"""The paper's figures from evaluation folders: no model, no retraining. Each function returns a matplotlib ``Figure``."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reshift.errors import UserError
from reshift.evaluation.metrics.image import average_precision, curve, roc_auc
from reshift.evaluation.results import Results, case_features, choose_cases
from reshift.reports.figures.maps import pixel_histogram, qualitative, qualitative_sets
from reshift.reports.figures.style import (
    ABNORMAL,
    COLUMN,
    NORMAL,
    PAGE,
    QUIET,
    blank,
    legend_below,
    line_style,
    run_names,
    save,
    style,
)
from reshift.reports.figures.sweep import sweep_figure
from reshift.system.files import create_output_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "all_figures", "choose_cases", "p_value_calibration", "pixel_histogram", "qualitative", "qualitative_sets", "roc_pr", "save",
    "sensitivity", "tsne", "tsne_sets",
]  # fmt: skip

MAX_REFERENCE = 1_000_000  # calibration normals; a larger number no longer changes the band of the p-values
DRAWS = 4000  # simulated test sets behind that band


@style()
def tsne(results: Results, seed: int = 0) -> "Figure":
    """Draw the detector's embeddings in a plane; the line is fitted in the plane afterwards, as a visual guide only."""
    return tsne_sets([results], seed)


@style()
def tsne_sets(runs: Sequence[Results], seed: int = 0) -> "Figure":
    """The same for several evaluations, such as one detector's on several data sets, side by side."""
    planes = [_plane(results, seed) for results in runs]
    figure = blank(COLUMN if len(runs) == 1 else min(PAGE, 2.3 * len(runs)), 2.6)
    axes = figure.subplots(1, len(runs), squeeze=False)[0]
    for ax, results, plane in zip(axes, runs, planes, strict=True):
        _draw_plane(ax, results, plane, counted=len(runs) == 1)
    legend_below(figure, axes[0], 3)
    return figure


def _plane(results: Results, seed: int) -> NDArray[np.float64]:
    """The embeddings by t-SNE, ``(n, 2)``."""
    features = case_features(results)
    if features is None:
        raise UserError(f"{results.folder}: {results.name} has no image features, so there is nothing to embed")
    if len(features) != len(results.cases) or len(features) < 4 or not np.isfinite(features).all():
        raise UserError(f"{results.folder}: features.npy needs one finite row per case, of at least 4 cases; evaluate again")
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise UserError("t-SNE needs scikit-learn: pip install 'reshift[report]'") from None
    flat = features.reshape(len(features), -1)
    start = "pca" if flat.shape[1] > 1 else "random"
    model = TSNE(perplexity=min(30.0, (len(flat) - 1) / 3), init=start, random_state=seed)
    plane: NDArray[np.float64] = np.asarray(model.fit_transform(flat), dtype=np.float64)
    plane -= plane.mean(0)
    plane /= max(float(plane.std()), 1e-12)  # the axes have no unit, and the SVM converges better
    return plane


def _draw_plane(ax: "Axes", results: Results, plane: NDArray[np.float64], *, counted: bool) -> None:
    labels = np.array([case["label"] == 1 for case in results.cases])
    for name, colour, marker, of in (("normal", NORMAL, "o", ~labels), ("abnormal", ABNORMAL, "^", labels)):
        look: dict[str, Any] = {"s": 7, "color": colour, "marker": marker, "alpha": 0.7, "linewidths": 0}
        ax.scatter(plane[of, 0], plane[of, 1], label=f"{name} ({of.sum()})" if counted else name, **look)
    limits = ax.get_xlim(), ax.get_ylim()
    if labels.any() and not labels.all():
        _svm_line(ax, plane, labels)
    ax.set(xticks=[], yticks=[], xlim=limits[0], ylim=limits[1], xlabel="t-SNE 1", ylabel="t-SNE 2")
    ax.set_title(f"{results.name} on {results.metrics.get('dataset')}{' (visual guide only)' if counted else ''}")


def _svm_line(ax: "Axes", plane: NDArray[np.float64], labels: NDArray[np.bool_]) -> None:
    from sklearn.svm import SVC

    svm = SVC(kernel="linear").fit(plane, labels)
    normal, offset = np.asarray(svm.coef_[0]), float(svm.intercept_[0])
    if np.linalg.norm(normal) < 1e-6:  # it assigns everything to the larger class
        return
    foot = -offset * normal / (normal @ normal)
    ax.axline(foot, foot + normal[::-1] * (-1, 1), color="black", linestyle="--", linewidth=0.7, label="linear SVM, post hoc")


@style()
def roc_pr(runs: Sequence[Results]) -> "Figure":
    """Draw ROC and precision-recall curves over images; the dot is the threshold calibrated on normals."""
    figure = blank(COLUMN, 1.6)
    roc, pr = figure.subplots(1, 2)
    drawn = [_curves(roc, pr, run, name, line_style(i)) for i, (run, name) in enumerate(zip(runs, run_names(runs), strict=True))]
    if not any(drawn):
        raise UserError("ROC and precision-recall curves need normal and abnormal test images")
    roc.plot([0, 1], [0, 1], color=QUIET, linewidth=0.5, zorder=0)
    if any(run.metrics["image"].get("threshold") is not None for run in runs):
        roc.plot([], [], color="black", marker="o", linestyle="none", label="at the calibrated threshold")
    for ax, x, y in ((roc, "false-positive rate", "true-positive rate"), (pr, "recall", "precision")):
        ax.set(xlabel=x, ylabel=y, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
        ax.set_box_aspect(1)
    legend_below(figure, roc)
    return figure


def _curves(roc: "Axes", pr: "Axes", run: Results, name: str, look: dict[str, Any]) -> bool:
    """Draw one run; False if it has images of one class only."""
    labels = np.array([case["label"] == 1 for case in run.cases], dtype=bool)
    scores = np.array([case["score"] for case in run.cases], dtype=np.float64)
    auc = roc_auc(labels, scores)
    if auc is None:
        roc.plot([], [], label=f"{name}: one class only", **look)
        return False
    tp, fp, _ = curve(labels, scores)
    positives, negatives = tp[-1], fp[-1]
    precision = tp / (tp + fp)
    pr.axhline(positives / len(labels), color=QUIET, linewidth=0.5, zorder=0)  # the precision of guessing
    text = f"{name}: AUC {auc:.3f}, AP {average_precision(tp, fp):.3f}"
    roc.plot(np.r_[0, fp] / negatives, np.r_[0, tp] / positives, label=text, **look)
    full = int(np.searchsorted(tp, positives)) + 1  # beyond full recall precision only falls
    pr.plot(np.r_[0, tp[:full]] / positives, np.r_[precision[0], precision[:full]], drawstyle="steps-pre", **look)  # area: AP
    threshold = run.metrics["image"].get("threshold")
    if threshold is not None:
        hit, false = int((scores[labels] > threshold).sum()), int((scores[~labels] > threshold).sum())
        dot = {"color": look["color"], "marker": "o", "markeredgecolor": "white", "markeredgewidth": 0.5, "zorder": 5}
        roc.plot([false / negatives], [hit / positives], **dot)
        if hit + false:
            pr.plot([hit / positives], [hit / (hit + false)], **dot)
    return True


@style()
def p_value_calibration(runs: Sequence[Results]) -> "Figure":
    """Draw how often normal test images get a p-value up to α, against α; calibrated p-values lie on the diagonal.

    The band holds 95 % of such curves at each α, if the images are independent (slices of one patient are not).
    """
    values = [_normal_p_values(run) for run in runs]
    if not any(len(p) for p in values):
        raise UserError("no evaluation has p-values of normal images; calibrate the bundle and evaluate again")
    lowest = min(float(p[0]) for p in values if len(p))
    alpha = np.unique(np.r_[np.linspace(0.0, 1.0, 201), np.geomspace(lowest / 2, 1.0, 200)])
    figure = blank(COLUMN, 1.6)
    axes = figure.subplots(1, 2)
    bands = [_band(alpha, *sizes) for sizes in sorted({(len(p), _reference_size(p)) for p in values if len(p)})]
    for ax in axes:
        for i, (low, high) in enumerate(bands):
            label = None if i else "95 % band if calibrated"
            ax.fill_between(alpha, low, high, step="post", color=QUIET, alpha=0.25, linewidth=0, label=label)
        ax.plot(alpha, alpha, color=QUIET, linewidth=0.5)
        for i, (name, p) in enumerate(zip(run_names(runs), values, strict=True)):
            share = np.arange(1, len(p) + 1) / max(len(p), 1)
            x, y = (np.r_[0.0, p, 1.0], np.r_[0.0, share, 1.0]) if len(p) else (p, share)
            text = f"{name} ({len(p)} normals)" if len(p) else f"{name}: no p-values"
            ax.plot(x, y, drawstyle="steps-post", label=text, **line_style(i))
        ax.set(xlabel="α", xlim=(0, 1), ylim=(0, 1))
        ax.set_box_aspect(1)
    axes[0].set(ylabel="normals with p ≤ α", xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    least = min(lowest, 1.0 / max(len(p) for p in values)) / 1.5
    axes[1].set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
    legend_below(figure, axes[0])
    return figure


def _normal_p_values(run: Results) -> NDArray[np.float64]:
    return np.sort([case["p_value"] for case in run.cases if case["label"] == 0 and case.get("p_value") is not None])


def _reference_size(p: NDArray[np.float64]) -> int:
    """Return n of p = k / (n + 1): how many normals the p-values were made from, by their common denominator."""
    shared = math.lcm(*(Fraction(float(value)).limit_denominator(100_000).denominator for value in set(p)))
    return min(shared - 1, MAX_REFERENCE)


def _band(alpha: NDArray[np.float64], tests: int, size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Simulate ``size`` normals that set the p-values and ``tests`` that get them, all from one distribution.

    p ≤ α means: above the k-th largest of the first, k = ⌊α (n + 1)⌋. The population above it is Beta(k, n + 1 - k).
    """
    rng = np.random.default_rng(0)
    low, high = np.zeros(len(alpha)), np.ones(len(alpha))
    for i, k in enumerate(np.floor(alpha * (size + 1) + 1e-9).astype(int)):
        above = rng.beta(k, size + 1 - k, DRAWS) if 0 < k <= size else np.full(DRAWS, float(k > size))
        low[i], high[i] = np.quantile(rng.binomial(tests, above) / tests, (0.025, 0.975))
    return low, high


@style()
def sensitivity(
    curves: Mapping[str, Sequence[tuple[float, Sequence[float]]]],
    *,
    xlabel: str,
    ylabel: str,
    stable: tuple[float, float] | None = None,
    stable_text: str = "stable range",
    best: float | None = None,
) -> "Figure":
    """Draw mean ± standard deviation over seeds against one setting; ``stable`` is shaded, ``best`` marked."""
    points = {name: sorted((x, list(values)) for x, values in curve if len(values)) for name, curve in curves.items()}
    points = {name: found for name, found in points.items() if found}
    if not points:
        raise UserError("a sensitivity figure needs at least one value")
    figure = blank(COLUMN, 1.9)
    ax = figure.subplots()
    for i, (name, found) in enumerate(points.items()):
        mean = [float(np.mean(values)) for _, values in found]
        spread = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for _, values in found]
        ax.errorbar([x for x, _ in found], mean, spread, marker="o", capsize=1.5, elinewidth=0.6, label=name, **line_style(i))
    above = ("data", "axes fraction")
    if stable is not None:
        ax.axvspan(*stable, color=QUIET, alpha=0.15, linewidth=0, zorder=0)
        ax.annotate(stable_text, (sum(stable) / 2, 1.01), xycoords=above, ha="center", va="bottom", fontsize=6)
    if best is not None:
        ax.axvline(best, color="black", linestyle="--", linewidth=0.6, zorder=0)
        ax.annotate(f" best: {best:g}", (best, 0.02), xycoords=above, rotation=90, ha="right", va="bottom", fontsize=6)
    every = [x for found in points.values() for x, _ in found]
    if min(every) > 0 and max(every) / min(every) >= 100:
        ax.set_xscale("log")
    ax.set(xlabel=xlabel, ylabel=ylabel)
    seeds = sorted({len(values) for found in points.values() for _, values in found})
    legend_below(
        figure, ax, 3, f"mean ± SD over {'–'.join(map(str, seeds[:1] + seeds[1:][-1:]))} seeds" if seeds != [1] else None
    )
    return figure


@style()
def all_figures(runs: Sequence[Results], out: Path) -> list[Path]:
    """Write every figure that the data allow, print one line about each of the others; return the PNGs."""
    if not runs:
        raise UserError("figures need at least one evaluation folder")
    create_output_folder(out)
    makers: dict[str, Callable[[], Figure]] = {
        "qualitative": partial(qualitative, runs),
        "pixel-histogram": partial(pixel_histogram, runs),
        "roc-pr": partial(roc_pr, runs),
        "p-values": partial(p_value_calibration, runs),
    }
    if len(runs) > 2 and len({run.metrics["method"] for run in runs}) == 1:
        makers["sensitivity"] = partial(sweep_figure, runs)
    for run, name in zip(runs, run_names(runs), strict=True):
        makers["tsne-" + re.sub(r"[^\w.-]+", "-", name)] = partial(tsne, run)
    written = []
    for name, make in makers.items():
        try:
            figure = make()
        except UserError as err:
            print(f"no figure {name}: {err}")
        else:
            written.append(save(figure, out / name))
    return written
