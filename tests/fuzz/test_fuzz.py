"""What ever fell stays mended, and some hundred random inputs per run are read or refused in one line."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from found import inputs
from mutate import mutate
from targets import TARGETS, empty, run

COUNT = {"dicom": 12, "series": 6, "weights": 4, "config": 12}  # slow to read; of the others, MANY
MANY = 40


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    """An empty folder for every input; archives are unpacked in this test's own folder."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return lambda: empty(tmp_path / "input")


@pytest.mark.parametrize(("target", "data"), [pytest.param(name, data, id=why) for name, why, data in inputs()])
def test_what_fell_before(target: str, data: bytes, room: Callable[[], Path]) -> None:
    assert not run(TARGETS[target], data, room())


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.filterwarnings("ignore")  # Pillow and pydicom tell about damage
def test_random_damage(name: str, tmp_path: Path, room: Callable[[], Path]) -> None:
    rng, target = random.Random(0), TARGETS[name]
    seeds = list(target.seeds(empty(tmp_path / "seeds")))
    assert all(run(target, seed, room()) for seed in seeds)
    for _ in range(COUNT.get(name, MANY)):
        run(target, mutate(rng.choice(seeds), rng), room())
