import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from reshift.data.manifest import COLUMNS
from reshift.data.phantom import KINDS, draw, write_phantom
from reshift.errors import UserError

every_kind = pytest.mark.parametrize("kind", KINDS)


def grown(mask: NDArray[np.bool_], pixels: int) -> NDArray[np.bool_]:
    image = Image.fromarray(mask.astype(np.uint8) * 255)
    for _ in range(pixels // 3):  # several small filters are much faster than a wide one
        image = image.filter(ImageFilter.MaxFilter(7))
    return np.asarray(image) > 0


def rows_of(manifest: Path) -> list[dict[str, str]]:
    with manifest.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@every_kind
def test_same_arguments_give_same_pixels_whatever_was_drawn_before(kind: str) -> None:
    first = draw(kind, 3, 2, abnormal=True, size=64, seed=5)
    draw(kind, 4, 0, abnormal=False, size=64)
    np.random.default_rng(0).random(7)
    again = draw(kind, 3, 2, abnormal=True, size=64, seed=5)
    np.testing.assert_array_equal(first.pixels, again.pixels)
    np.testing.assert_array_equal(first.mask, again.mask)
    assert (first.subject, first.level) == (f"{kind}-0003", 2)


@every_kind
@pytest.mark.parametrize("change", [{"seed": 1}, {"subject": 8}, {"level": 1}])
def test_seed_subject_and_level_each_matter(kind: str, change: dict[str, int]) -> None:
    base = {"subject": 7, "level": 0, "seed": 0}
    one, other = (draw(kind, **arguments, abnormal=False, size=64) for arguments in (base, base | change))
    assert np.abs(one.pixels.astype(int) - other.pixels).mean() > 1


@every_kind
def test_neighbouring_slices_of_a_subject_resemble_each_other_more_than_other_subjects(kind: str) -> None:
    def shape(subject: int, level: int) -> NDArray[np.float64]:
        # Smoothed and standardised: anatomy remains, speckle and this exposure's gain do not.
        image = Image.fromarray(draw(kind, subject, level, abnormal=False).pixels)
        pixels = np.asarray(image.filter(ImageFilter.GaussianBlur(2)), dtype=np.float64)
        return np.asarray((pixels - pixels.mean()) / pixels.std())

    within = [np.abs(shape(s, 0) - shape(s, 1)).mean() for s in range(12)]
    between = [np.abs(shape(s, 0) - shape(s + 1, 0)).mean() for s in range(12)]
    assert np.mean(within) < 0.8 * np.mean(between)


@every_kind
def test_healthy_images_have_no_mask_and_fill_the_grey_range(kind: str) -> None:
    for subject in range(10):
        phantom = draw(kind, subject, subject % 4, abnormal=False)
        assert phantom.pixels.shape == phantom.mask.shape == (128, 128)
        assert phantom.pixels.dtype == np.uint8
        assert phantom.mask.dtype == np.bool_
        assert not phantom.mask.any()
        assert phantom.pixels.std() > 20
        assert (phantom.pixels == 255).mean() < 0.1


@every_kind
def test_lesions_are_neither_specks_nor_most_of_the_image(kind: str) -> None:
    areas = [draw(kind, subject, subject % 4, abnormal=True).mask.mean() for subject in range(36)]
    assert min(areas) > 0.001
    assert max(areas) < 0.12
    assert max(areas) > 4 * min(areas)


@every_kind
def test_a_lesion_changes_pixels_under_its_mask_and_none_far_away(kind: str) -> None:
    for subject in range(24):
        healthy, sick = (draw(kind, subject, subject % 4, abnormal=abnormal) for abnormal in (False, True))
        changed = healthy.pixels != sick.pixels
        near = grown(sick.mask, 24)
        if kind == "ultrasound":  # a mass also shadows or brightens what lies behind it
            near = np.maximum.accumulate(grown(sick.mask, 6), axis=0)
        assert changed[sick.mask].mean() > 0.7
        assert not changed[~near].any()


@every_kind
def test_lesions_show_but_not_all_equally(kind: str) -> None:
    contrasts = []
    for subject in range(24):
        healthy, sick = (draw(kind, subject, 0, abnormal=abnormal) for abnormal in (False, True))
        contrasts.append(np.abs(sick.pixels.astype(int) - healthy.pixels)[sick.mask].mean())
    assert min(contrasts) > 12
    assert np.quantile(contrasts, 0.9) > 1.5 * np.quantile(contrasts, 0.1)


@every_kind
def test_mean_brightness_does_not_reveal_the_label(kind: str) -> None:
    normal = np.array([draw(kind, s, s % 4, abnormal=False).pixels.mean() for s in range(40)])
    abnormal = np.array([draw(kind, s, s % 4, abnormal=True).pixels.mean() for s in range(100, 140)])
    auc = (abnormal[:, None] > normal).mean() + 0.5 * (abnormal[:, None] == normal).mean()
    assert 0.3 < auc < 0.75


@every_kind
@pytest.mark.parametrize("size", [32, 64, 200])
def test_any_size_works_and_keeps_the_anatomy(kind: str, size: int) -> None:
    for subject in range(30 if size == 32 else 6):
        phantom = draw(kind, subject, 3, abnormal=True, size=size)
        assert phantom.pixels.shape == phantom.mask.shape == (size, size)
        assert phantom.mask.sum() >= 4  # a lesion is more than a speck
    small = Image.fromarray(draw(kind, 0, 0, abnormal=False, size=size).pixels).resize((16, 16), Image.Resampling.BOX)
    large = Image.fromarray(draw(kind, 0, 0, abnormal=False, size=128).pixels).resize((16, 16), Image.Resampling.BOX)
    assert np.corrcoef(np.asarray(small).ravel(), np.asarray(large).ravel())[0, 1] > 0.85


@every_kind
def test_manifest_describes_the_files(kind: str, tmp_path: Path) -> None:
    manifest = write_phantom(tmp_path, kind, train=10, test_normal=5, test_abnormal=13, size=32, slices=4)
    rows = rows_of(manifest)
    assert manifest == tmp_path / "manifest.csv"
    assert tuple(rows[0]) == COLUMNS == ("image", "mask", "subject", "label", "split", "note")
    assert [(row["split"], row["label"]) for row in rows] == ([("train", "0")] * 10 + [("test", "0")] * 5 + [("test", "1")] * 13)
    for row in rows:
        with Image.open(tmp_path / row["image"]) as image:
            assert (image.mode, image.size) == ("L", (32, 32))
        assert bool(row["mask"]) == bool(row["note"]) == (row["label"] == "1")
        if row["mask"]:
            with Image.open(tmp_path / row["mask"]) as mask:
                assert (mask.mode, mask.size) == ("1", (32, 32))
                assert np.asarray(mask).any()
    assert {path.name for path in tmp_path.glob("images/*")} == {Path(row["image"]).name for row in rows}
    assert {path.name for path in tmp_path.glob("masks/*")} == {Path(row["mask"]).name for row in rows if row["mask"]}
    assert len({row["note"] for row in rows}) == 4  # three lesions, and healthy


def test_no_subject_is_in_two_groups_or_has_more_images_than_slices(tmp_path: Path) -> None:
    groups, images = defaultdict(set), defaultdict(set)
    for row in rows_of(write_phantom(tmp_path, train=7, test_normal=4, test_abnormal=5, size=32, slices=3)):
        groups[row["subject"]].add((row["split"], row["label"]))
        images[row["subject"]].add(row["image"])
    assert all(len(group) == 1 for group in groups.values())
    assert sorted(len(names) for names in images.values()) == [1, 1, 2, 3, 3, 3, 3]


def test_written_files_hold_what_draw_returns_and_repeat_exactly(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write_phantom(tmp_path / folder, "chest", train=2, test_normal=0, test_abnormal=2, size=32, seed=9, slices=2)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    assert len(files) == 7
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)
    drawn = draw("chest", 1, 1, abnormal=True, size=32, seed=9)
    with Image.open(tmp_path / "one/images/chest-0001_01.png") as image:
        np.testing.assert_array_equal(np.asarray(image), drawn.pixels)
    with Image.open(tmp_path / "one/masks/chest-0001_01.png") as mask:
        np.testing.assert_array_equal(np.asarray(mask), drawn.mask)


def test_unknown_kind_names_the_nearest_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'ultrasound'") as error:
        draw("ultrasond", 0, 0, abnormal=False)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="did you mean 'brain'"):
        write_phantom(tmp_path / "out", "Brian")
    assert not (tmp_path / "out").exists()


def test_impossible_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 32"):
        draw("brain", 0, 0, abnormal=False, size=31)
    with pytest.raises(UserError, match="slice"):
        write_phantom(tmp_path, slices=0)
