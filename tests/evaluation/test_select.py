"""Choosing configurations on normals alone: the synthetic shifts, and the ranking made with them."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from helpers import Cli, refused
from numpy.typing import NDArray

from reshift.data.phantom import write_phantom
from reshift.evaluation.shift_bank import KINDS, apply_shift

SIZE = 48


def image(seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIZE, :SIZE]
    inside = (y - 24) ** 2 + (x - 24) ** 2 < 20**2
    texture = 0.3 * np.sin(x / 3.0) * np.cos(y / 4.0) + 0.1 * rng.standard_normal((SIZE, SIZE))
    return np.where(inside, texture, -1.0).astype(np.float32)[None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_shift_is_local_visible_where_its_mask_says_and_comes_again(kind: str) -> None:
    sizes = []
    for i in range(12):
        x = image(i)
        found = apply_shift(x, kind, (0, i))
        again = apply_shift(x, kind, (0, i))
        assert np.array_equal(found.pixels, again.pixels)
        assert np.array_equal(found.mask, again.mask)
        assert found.pixels.dtype == np.float32
        assert np.abs(found.pixels).max() <= 1.0
        change = np.abs(found.pixels - x)[0]
        assert (change > 0).mean() < 0.6  # a part, not the whole
        sizes.append(found.mask.mean())
        if found.mask.any():
            assert change[found.mask].mean() > 3 * change[~found.mask].mean()
    assert 0.002 < np.mean(sizes) < 0.3
    assert not np.array_equal(apply_shift(image(), kind, (0, 0)).pixels, apply_shift(image(), kind, (1, 0)).pixels)


def test_colour_is_shifted_alike_in_all_channels() -> None:
    x = np.repeat(image(), 3, axis=0)
    found = apply_shift(x, "bright", (0, 3)).pixels - x
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@pytest.fixture
def candidates(tmp_path: Path) -> tuple[Path, list[Path]]:
    data = write_phantom(tmp_path / "data", "brain", train=24, test_normal=4, test_abnormal=4, size=32)
    small = '[data]\nsize = 32\nholdout = 0.3\n[calibrate]\nfeatures = "off"\n'
    texts = {
        "bright": f'method = "brightness"\n{small}',
        "area": f'method = "area"\n{small}',
        "patches": f'method = "patchcore"\n{small}[model]\nbank = 256\n',
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.toml").write_text(text)
    return data, [tmp_path / f"{name}.toml" for name in texts]


def test_the_ranking_needs_no_test_image(
    run_cli: Cli, candidates: tuple[Path, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reshift.evaluation.select.MIN_SHIFTED", 1)  # every held-out normal once
    data, configs = candidates
    rows = list(csv.DictReader(data.open()))
    for row in rows:
        if row["split"] == "test":  # empty files: reading one would fail
            (data.parent / row["image"]).write_bytes(b"")
    out = tmp_path / "out"
    done = run_cli("select", *configs, "--data", data, "--out", out)
    assert done.code == 0, done.err
    ranking = json.loads((out / "select.json").read_text())["ranking"]
    assert ranking[0]["name"] == "patches"
    assert [row["ap"] for row in ranking] == sorted((row["ap"] for row in ranking), reverse=True)
    assert set(ranking[0]["kinds"]) == set(KINDS)
    assert ranking[0]["normals"] + ranking[0]["trained_on"] == 24
    assert "| patches |" in (out / "select.md").read_text()
    assert "| patches |" in done.out
    again = run_cli("select", *configs, "--data", data, "--out", out)  # measured again, not trained again
    assert json.loads((out / "select.json").read_text())["ranking"] == ranking
    assert again.code == 0


def test_candidates_that_cannot_be_compared(run_cli: Cli, candidates: tuple[Path, list[Path]], tmp_path: Path) -> None:
    data, configs = candidates
    configs[0].write_text('method = "brightness"\n[data]\nsize = 32\nholdout = 0.5\n')
    refused(run_cli("select", *configs[:2], "--data", data, "--out", tmp_path / "out"), "hold out different normals")
    other = tmp_path / "elsewhere" / configs[1].name
    other.parent.mkdir()
    other.write_text(configs[1].read_text())
    refused(run_cli("select", configs[1], other, "--data", data, "--out", tmp_path / "out"), "two candidates", "'area'")
