"""Marks against the best baseline: the right p-values, the same images only, Holm's correction, and no false claims."""

from typing import Any

import numpy as np
import pytest
from bench_cells import cell, drawn, scored

from reshift.bench.tables import markdown_page
from reshift.bench.tables.build import make_tables
from reshift.bench.tables.significance import DRAWS, MIN_SUBJECTS, compare_cells, holm
from reshift.evaluation.metrics.confidence import paired_image
from reshift.evaluation.metrics.table import METRICS, image_metrics

THRESHOLD = 1.0
AUC, AP, F1, AP_PIX, DICE = (METRICS[key] for key in ("image.auc", "image.ap", "image.f1", "pixel.ap", "pixel.dice"))


def run(row: str, shift: float, seed: int = 0, **change: Any) -> dict[str, Any]:
    """A cell whose metrics are those of its scores."""
    paired = change.pop("paired", None) or scored(drawn(shift, seed + 100 * len(row)))
    labels = np.array(paired["labels"]) == 1
    image = image_metrics(labels, np.array(paired["scores"]), THRESHOLD)
    lesion = [value for value in paired["dice"] if value is not None]
    pixel = {"ap": float(np.mean(lesion)), "dice": float(np.mean(lesion)), "aupro": 0.5}
    return cell(row, seed=seed, image=image, pixel=pixel, paired=paired, **change)


def marks(cells: list[dict[str, Any]], key: str = "image") -> dict[str, str]:
    table = next(table for table in make_tables(cells) if table.key == key)
    return {
        f"{row.label} {metric.caption}": entry.verdict.mark
        for row in table.rows
        for (_, metric), entry in row.entries.items()
        if entry.verdict is not None
    }


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("metric", [AUC, AP, F1])
def test_with_one_seed_it_is_the_packages_own_paired_test(metric: Any) -> None:
    a, b = run("ours", 1.5), run("theirs", 1.0)
    found = compare_cells([a], [b], metric, {})
    labels, subjects = np.array(a["paired"]["labels"]) == 1, a["paired"]["subjects"]
    scores = [np.array(c["paired"]["scores"]) for c in (a, b)]
    known = paired_image(labels, scores[0], scores[1], subjects, THRESHOLD, THRESHOLD, metric.name, draws=DRAWS)
    assert known is not None
    assert found == pytest.approx((known.difference, known.p_value))


def test_the_order_of_the_images_does_not_matter() -> None:
    a, b = run("ours", 1.5), run("theirs", 1.0)
    turned = {name: value[::-1] for name, value in b["paired"].items() if isinstance(value, list)}
    for metric in (AUC, DICE):
        assert compare_cells([a], [b], metric, {}) == compare_cells([a], [{**b, "paired": turned}], metric, {})


def test_seeds_are_averaged_per_draw() -> None:
    ours = [run("ours", 1.5, seed) for seed in (0, 1)]
    theirs = [run("theirs", 1.0, seed) for seed in (0, 1)]
    found = compare_cells(ours, theirs, AUC, {})
    assert not isinstance(found, str)
    means = [np.mean([c["metrics"]["image"]["auc"] for c in cells]) for cells in (ours, theirs)]
    assert found[0] == pytest.approx(means[0] - means[1])
    noisy = [run("other seeds", 1.0, 7), run("other seeds", 1.0, 8)]
    first, second = (np.array(c["paired"]["scores"]) for c in noisy)
    assert compare_cells(noisy, noisy[::-1], AUC, {}) == (0.0, 1.0)  # the mean of metrics, whatever the order of the seeds
    averaged = run("other seeds", 0.0, paired=scored(((first + second) / 2).tolist()), key="averaged")
    apart = compare_cells(noisy, [averaged], AUC, {})
    assert not isinstance(apart, str)
    assert apart[0] < 0.0  # averaging scores instead would test an ensemble, which ranks better than its members


def test_a_clear_difference_is_marked_both_ways_and_none_is_not() -> None:
    bases = [run("good", 1.0, s) for s in (0, 1)] + [run("poor one", 0.2, s) for s in (0, 1)]
    better = [run("ours", 4.0, s, group="ours") for s in (0, 1)]
    worse = [run("weak", -1.0, s, group="ours") for s in (0, 1)]
    same = [run("copy", 1.0, s, group="ours", paired=bases[s]["paired"]) for s in (0, 1)]
    found = marks([*bases, *better, *worse, *same])
    assert {found[f"ours {f}"] for f in ("AUC", "AP", "F1")} == {"+"}
    assert found["weak AUC"] == "-"
    assert found["copy AUC"] == ""
    assert not any(name.startswith(("good", "poor")) for name in found)  # only our own rows are tested
    pixel = marks([*bases, *better, *worse, *same], "pixel")
    assert (pixel["ours Dice"], pixel["weak AP_pix"], pixel["copy Dice"]) == ("+", "-", "")
    assert "ours AUPRO" not in pixel


def test_the_test_is_against_the_best_baseline() -> None:
    table = make_tables([run("ours", 1.5, group="ours"), run("good", 1.0), run("poor one", 0.1)])[0]
    verdict = table.rows[0].entries["lgg_flair", AUC].verdict
    assert verdict is not None
    assert verdict.against == "good"


def test_pixel_metrics_are_tested_by_the_signs_of_the_subjects() -> None:
    ill = 8
    paired = scored([0.5] * 4 * ill)
    ours = {**paired, "dice": [None if value is None else value + 0.1 for value in paired["dice"]]}
    found = compare_cells([run("ours", 0.0, paired=ours)], [run("theirs", 0.0, paired=paired)], DICE, {})
    assert not isinstance(found, str)
    assert found[0] == pytest.approx(0.1)
    assert found[1] == pytest.approx(2 / 2**ill, rel=0.5)  # two of the 2⁸ choices of signs are as far off
    for image in (2, 3):  # of every other ill subject, the other way round
        ours["dice"][image::8] = [0.4] * (ill // 2)
    mixed = compare_cells([run("ours", 0.0, paired=ours)], [run("theirs", 0.0, paired=paired)], DICE, {})
    assert not isinstance(mixed, str)
    assert mixed[1] > 0.5


def test_other_images_mean_no_mark_and_a_note() -> None:
    other = scored(drawn(1.0, 3))
    other["inputs"] = [f"other {name}" for name in other["inputs"]]
    cells = [run("ours", 4.0, group="ours"), run("theirs", 1.0, paired=other)]
    assert marks(cells) == {}
    text = markdown_page(cells, make_tables(cells))
    assert "No test of ours against theirs on lgg_flair, AUC: not the same test images." in text


def test_too_few_subjects_prove_nothing() -> None:
    few = 2 * 2 * (MIN_SUBJECTS - 1)  # images: two per subject, every other subject ill
    a, b = (scored([float(v) for v in drawn(s, 0, few)]) for s in (9.0, 0.0))
    found = compare_cells([run("ours", 0.0, paired=a)], [run("theirs", 0.0, paired=b)], AP_PIX, {})
    assert found == f"fewer than {MIN_SUBJECTS} subjects with disease"


def test_no_mark_where_the_printed_means_say_the_opposite() -> None:
    ours, theirs = run("ours", 4.0, group="ours"), run("theirs", 1.0)
    ours["metrics"]["pixel"]["dice"], theirs["metrics"]["pixel"]["dice"] = 0.1, 0.9  # pooled, against the mean over images
    found = marks([ours, theirs], "pixel")
    assert (found["ours AP_pix"], found["ours Dice"]) == ("+", "")


def test_ablations_are_tested_against_the_full_method() -> None:
    cells = [run("DMD", 4.0, group="ours", method="dmd"), run("w/o x", 0.5, group="ablation", method="dmd"), run("AE", 1.0)]
    assert marks(cells, "ablation")["w/o x AUC"] == "-"
    assert marks(cells)["DMD AUC"] == "+"


def test_a_cell_without_scores_is_named() -> None:
    cells = [run("ours", 4.0, group="ours"), {**run("theirs", 1.0), "paired": None}]
    assert marks(cells) == {}
    assert "a cell lacks its scores per image" in markdown_page(cells, make_tables(cells))
