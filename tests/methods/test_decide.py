"""What training normals decide: exposure, polarity, photometry; and how the normals are described for it."""

from pathlib import Path

import numpy as np
import pytest
from small_reshift import build

from reshift.config import DataConfig
from reshift.data.manifest import load_cases
from reshift.data.phantom import write_phantom
from reshift.methods.detector import Normals
from reshift.training.normals import describe, grey_spread, tissue

FLAIR = Normals(7.0, 0.4, grey_spread=0.2, middle=0.2, bright_side=0.5)


@pytest.mark.parametrize(("normals", "exposure", "polarity"), [
    (FLAIR, 1.25, "likely bright"),
    (FLAIR._replace(bright_side=1.5), 1.0, "none"),  # bright pixels are as usual as dark ones
    (FLAIR._replace(middle=0.6), 1.0, "none"),  # tissue of many greys
])  # fmt: skip
def test_uniform_tissue_with_few_bright_pixels_makes_brightness_count(normals: Normals, exposure: float, polarity: str) -> None:
    decided = build().choose_settings(normals)
    assert (decided["exposure"], decided["polarity"]) == (exposure, polarity)


def test_overall_has_less_to_say_where_normals_are_few() -> None:
    shares = [build().choose_settings(FLAIR._replace(images=n))["overall_share"] for n in (32, 100, 600)]
    assert shares == pytest.approx([0.194, 0.4, 0.686], abs=1e-3)


def test_greys_that_differ_from_subject_to_subject_ask_for_strong_photometry() -> None:
    assert build().choose_settings(FLAIR)["photometry"] == "strong"
    assert build().choose_settings(FLAIR._replace(grey_spread=0.07))["photometry"] == "mild"


def test_whoever_trains_is_told_that_lesions_are_taken_to_be_bright() -> None:
    [line] = build(polarity="likely bright").remarks()
    assert "model.polarity=none" in line
    assert not build(polarity="bright").remarks() + build(polarity="none").remarks()


def test_a_likely_polarity_has_half_of_a_declared_one_and_no_say_in_the_score() -> None:
    likely, declared = (build(polarity=polarity, weights={"tail": 6.0}).fusion for polarity in ("likely bright", "bright"))
    assert likely.weights.tolist() == pytest.approx([1 / 7, 1 / 7, 1 / 7, 1 / 7, 3 / 7])
    assert declared.weights.tolist() == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.6])
    assert likely.score_weights.tolist() == pytest.approx([0.125, 0.125, 0.125, 0.125, 0.0, 0.5])
    assert declared.score_weights.tolist() == pytest.approx([0.1] * 5 + [0.5])


def test_both_polarities_share_all_that_is_trained_but_not_each_other_s_tails() -> None:
    likely, bright, dark = (build(polarity=polarity).stages() for polarity in ("likely bright", "bright", "dark"))
    assert [s.decided_by for s in likely] == [s.decided_by for s in bright]
    assert [s.decided_by for s in bright[:-1]] == [s.decided_by for s in dark[:-1]]
    assert bright[-1].decided_by != dark[-1].decided_by


def test_what_is_said_is_not_decided() -> None:
    said = {"exposure": 0.8, "polarity": "dark", "photometry": "mild", "overall": "off", "overall_share": 0.3, "symmetry": "on"}
    assert build(**said, centring=0.0).choose_settings(FLAIR) == {}


def test_tissue_is_described_by_its_quartiles_and_its_two_sides() -> None:
    image = np.full((32, 32), -1.0, np.float32)
    image[8:24, 8:24] = np.linspace(0.0, 1.0, 256, dtype=np.float32).reshape(16, 16)  # of [0, 1]: 0.5 to 1
    assert tissue(image) == pytest.approx((0.75, 0.25 / 0.75, 1.0), rel=0.01)
    image[8:24, 8:16] = -0.2  # 0.4: half of it is darker than before
    found = tissue(image)
    assert found is not None
    assert found.bright_side > 1.0
    assert tissue(np.full((32, 32), -1.0, np.float32)) is None


def test_subjects_differ_by_the_median_grey_of_their_tissue() -> None:
    assert grey_spread({"a": [0.2, 0.2], "b": [0.4]}) == pytest.approx(np.log(2.0) / 2.0)
    assert grey_spread({"a": [0.2, 0.4], "b": [0.4, 0.2]}) == pytest.approx(0.0, abs=1e-9)
    assert grey_spread({}) == np.inf


def test_a_common_level_does_not_hide_that_scanners_differ(tmp_path: Path) -> None:
    manifest = write_phantom(tmp_path / "data", kind="brain", train=12, test_normal=0, test_abnormal=0, slices=2, size=64)
    found = [describe(load_cases(manifest), DataConfig(size=64, level=level)) for level in ("none", "median")]
    assert found[0].grey_spread == found[1].grey_spread > 0.0
