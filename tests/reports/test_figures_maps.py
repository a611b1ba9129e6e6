"""Figures of maps: the right cases on a fixed scale; and what holds for every figure: one style, the same bytes, whole files."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluations import changed, folder

from reshift.errors import UserError
from reshift.evaluation.results import Results, case_arrays, pixel_counts
from reshift.inference.overlay import colours
from reshift.reports.figures import paper as figures
from reshift.reports.figures.style import line_style, run_names


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    root = tmp_path_factory.mktemp("evaluations")
    return [folder(root, "vae", gain=0.8, features=False), folder(root, "dmd", gain=2.4)]


def test_a_figure_is_the_same_bytes_in_another_process(runs: list[Results], tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from reshift.reports.figures import paper as f\n"
        "from reshift.evaluation.results import load_results\n"
        "runs = [load_results(Path(p)) for p in sys.argv[2:]]\n"
        "f.save(f.roc_pr(runs), Path(sys.argv[1] + '-roc')); f.save(f.qualitative(runs), Path(sys.argv[1] + '-maps'))"
    )
    for seed in ("1", "2"):
        args = [sys.executable, "-c", code, str(tmp_path / seed), *(str(run.folder) for run in runs)]
        subprocess.run(args, check=True, env={**os.environ, "PYTHONHASHSEED": seed})
    for name in ("roc.pdf", "roc.png", "maps.pdf", "maps.png"):
        one = (tmp_path / f"1-{name}").read_bytes()
        assert one == (tmp_path / f"2-{name}").read_bytes()
        assert b"CreationDate" not in one


def test_a_failed_save_keeps_the_old_file(runs: list[Results], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure, out = figures.roc_pr(runs), tmp_path / "v1.2"
    assert figures.save(figure, out) == tmp_path / "v1.2.png"  # the dot is part of the name
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match=r"v1\.2\.pdf: could not be written"):
        figures.save(figure, out)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_callers_settings_neither_matter_nor_change(runs: list[Results], tmp_path: Path) -> None:
    import matplotlib as mpl

    before = "matplotlib.pyplot" in sys.modules  # other tests may have imported it
    plain = figures.save(figures.roc_pr(runs), tmp_path / "plain").read_bytes()
    with mpl.rc_context({"font.size": 20.0, "axes.facecolor": "red"}):
        assert figures.save(figures.roc_pr(runs), tmp_path / "odd").read_bytes() == plain
        assert mpl.rcParams["font.size"] == 20.0
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_importing_takes_neither_matplotlib_nor_sklearn() -> None:
    code = "import reshift.reports.figures, sys; assert not {'matplotlib', 'sklearn', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_cases_are_spread_over_lesion_size_whatever_the_scores(runs: list[Results]) -> None:
    chosen = figures.choose_cases(runs, 5)
    sizes = {case["input"]: case["lesion_pixels"] for case in runs[0].cases if case["label"] == 1}
    ranked = sorted(sizes, key=lambda name: sizes[name])
    assert chosen == [ranked[i] for i in (0, 5, 10, 14, 19)]  # smallest to largest
    worse = runs[1]._replace(cases=[{**case, "score": -case["score"]} for case in reversed(runs[1].cases)])
    assert figures.choose_cases(runs, 5) == figures.choose_cases([worse, runs[0]], 5) == chosen
    assert len(figures.choose_cases(runs, 100)) == len(sizes)


def test_cases_that_one_run_lacks_are_left_out(runs: list[Results]) -> None:
    first, last = figures.choose_cases(runs, 2)
    lacking = [{**case, "arrays": None} if case["input"] == last else case for case in runs[1].cases if case["input"] != first]
    other = runs[1]._replace(cases=lacking)
    for order in ([runs[0], other], [other, runs[0]]):
        assert not {first, last} & set(figures.choose_cases(order, 100))
        assert len(figures.choose_cases(order, 100)) == 18
    with pytest.raises(UserError, match=f"no map of {first}"):
        figures.qualitative([runs[0], other], cases=[first])


def test_qualitative_shows_the_maps_on_each_methods_fixed_scale(runs: list[Results]) -> None:
    name = figures.choose_cases(runs, 3)[1]
    uncalibrated = changed(runs[1], pixel={"threshold": None})
    figure = figures.qualitative([runs[0], uncalibrated], cases=[name])
    tiles = [ax.get_images()[0].get_array() for ax in figure.axes[:4]]
    arrays = [case_arrays(run, next(case for case in run.cases if case["input"] == name)) for run in runs]
    np.testing.assert_array_equal(tiles[0], arrays[0].image)
    np.testing.assert_array_equal(tiles[1], colours(arrays[0].heatmap / (2 * 0.14)))
    np.testing.assert_array_equal(tiles[2], colours(arrays[1].heatmap / np.float32(np.percentile(arrays[1].heatmap, 99.9))))
    np.testing.assert_array_equal(tiles[3], arrays[0].mask)
    assert [ax.get_title() for ax in figure.axes[:4]] == ["input", "vae", "dmd*", "truth"]
    assert figure.axes[0].get_ylabel() == f"lesion {arrays[0].mask.mean():.1%}"  # type: ignore[union-attr]


def test_a_method_without_maps_of_a_set_has_empty_tiles(runs: list[Results]) -> None:
    figure = figures.qualitative_sets({"a": runs, "b": [None, runs[1]]}, ["vae", "dmd"], rows=1)
    assert [[text.get_text() for text in ax.texts] for ax in figure.axes[4:8]] == [[], ["no map"], [], []]
    assert [len(ax.get_images()) for ax in figure.axes[:8]] == [1, 1, 1, 1, 1, 0, 1, 1]
    assert [ax.get_title() for ax in figure.axes[:4]] == ["input", "vae", "dmd", "truth"]


def test_a_missing_mask_is_not_drawn_as_a_healthy_image(tmp_path: Path) -> None:
    run = folder(tmp_path, "dmd", normal=2, abnormal=2, features=False)
    ill = run._replace(cases=[{**case, "label": 1, "lesion_pixels": None} for case in run.cases[:2]])
    assert figures.choose_cases([ill]) == ["case000.png", "case001.png"]
    unknown, healthy = figures.qualitative([ill]).axes, figures.qualitative([run], cases=["case000.png"]).axes
    assert (unknown[0].get_ylabel(), healthy[0].get_ylabel()) == ("no mask", "normal")
    assert [text.get_text() for text in unknown[2].texts] == ["no mask"]
    assert not unknown[2].get_images()
    assert not np.asarray(healthy[2].get_images()[0].get_array()).any()


def test_histogram_holds_every_pixel_once(runs: list[Results]) -> None:
    figure = figures.pixel_histogram(runs)
    for ax, run in zip(figure.axes, runs, strict=True):
        counts = pixel_counts(run)
        assert counts is not None
        stairs: list[Any] = [patch for patch in ax.patches if str(patch.get_label()).endswith("pixels")]
        patches = {patch.get_label(): patch.get_data() for patch in stairs}
        assert set(patches) == {"normal pixels", "abnormal pixels"}
        for label, of in (("normal pixels", counts.normal), ("abnormal pixels", counts.abnormal)):
            assert np.nansum(patches[label].values) == pytest.approx(1.0)
            edges = patches[label].edges
            first = (counts.values < edges[1]) & (counts.values >= edges[0])
            assert np.nan_to_num(patches[label].values[0]) == pytest.approx(of[first].sum() / of.sum())
        np.testing.assert_array_equal(patches["normal pixels"].edges, patches["abnormal pixels"].edges)


def test_names_tell_runs_apart(runs: list[Results]) -> None:
    one = runs[0]
    assert run_names(runs) == ["vae", "dmd"]
    assert run_names([one, changed(one, dataset="busi")]) == ["vae, phantom", "vae, busi"]
    assert run_names([one, changed(one, seed=1)]) == ["vae, seed 0", "vae, seed 1"]
    assert len(set(run_names([one, one]))) == 2
    looks = {tuple(line_style(i).values()) for i in range(13)}
    assert len(looks) == 13  # the paper's methods
