"""The cache of prepared images: the same pixels, found by content, bounded, and never in the way."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import noise, save, save_many
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.data import prepared_cache as module
from reshift.data.cases import Case
from reshift.data.manifest import load_cases
from reshift.data.prepared_cache import PreparedCache, _prepared, prepared_cache
from reshift.data.source import Source
from reshift.errors import UserError

CONFIG = DataConfig(size=32)
STREAM = DataConfig(size=32, memory_gb=1e-6)
CPU = torch.device("cpu")
SIZE = 4 + 4 * 32 * 32  # bytes of one entry


class Counted:
    """Prepares, and counts."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __call__(self, case: Case, config: DataConfig) -> NDArray[np.float32]:
        self.made.append(case.name)
        return _prepared(case, config)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def case_of(path: Path, at: int | None = None) -> Case:
    return Case(path.name, path, None, path.stem, 0, "train", "", slice=at)


@pytest.fixture
def cases(tmp_path: Path) -> list[Case]:
    return load_cases(save_many(tmp_path / "images", 6))


def test_second_time_it_is_read_and_the_same(cases: list[Case], tmp_path: Path) -> None:
    counted = Counted()
    first = [PreparedCache(tmp_path / "c", 10**9).get(case, CONFIG, counted) for case in cases]
    again = [PreparedCache(tmp_path / "c", 10**9).get(case, CONFIG, counted) for case in cases]
    assert len(counted.made) == len(cases) == len(files(tmp_path / "c"))
    for a, b, case in zip(first, again, cases, strict=True):
        assert b.shape == (1, 32, 32)
        assert b.dtype == np.float32
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(b, _prepared(case, CONFIG))


def test_content_counts_and_not_the_name(tmp_path: Path) -> None:
    one, copy = save(noise(1), tmp_path / "a.png"), save(noise(1), tmp_path / "b" / "c.png")
    counted = Counted()
    PreparedCache(tmp_path / "c", 10**9).get(case_of(one), CONFIG, counted)
    PreparedCache(tmp_path / "c", 10**9).get(case_of(copy), CONFIG, counted)
    assert counted.made == ["a.png"]
    save(noise(2), one)
    got = PreparedCache(tmp_path / "c", 10**9).get(case_of(one), CONFIG, counted)
    assert counted.made == ["a.png", "a.png"]
    np.testing.assert_array_equal(got, _prepared(case_of(one), CONFIG))


@pytest.mark.parametrize("other", [{"size": 64}, {"channels": 3}, {"scale": "percentile"}, {"square": "pad"}])
def test_what_decides_the_pixels_is_part_of_the_key(other: dict[str, object], tmp_path: Path) -> None:
    case, counted, cache = case_of(save(noise(1), tmp_path / "a.png")), Counted(), PreparedCache(tmp_path / "c", 10**9)
    cache.get(case, CONFIG, counted)
    config = DataConfig.model_validate({"size": 32, **other})
    np.testing.assert_array_equal(cache.get(case, config, counted), _prepared(case, config))
    assert len(counted.made) == 2
    cache.get(case, DataConfig(size=32, holdout=0.5, memory_gb=1.0), counted)  # these change no pixel
    assert len(counted.made) == 2


def test_slices_and_code_are_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(noise(1), tmp_path / "a.png")
    cache = PreparedCache(tmp_path / "c", 10**9)
    places = {cache._path(case_of(path, at), CONFIG) for at in (None, 0, 1)}
    monkeypatch.setattr(module, "_code", lambda: "of another version")
    places |= {cache._path(case_of(path, at), CONFIG) for at in (None, 0, 1)}
    assert len(places) == 6


@pytest.mark.parametrize("damage", [b"", b"abc", b"\0" * SIZE, None])
def test_a_torn_file_is_made_anew(damage: bytes | None, tmp_path: Path) -> None:
    case, counted = case_of(save(noise(1), tmp_path / "a.png")), Counted()
    whole = PreparedCache(tmp_path / "c", 10**9).get(case, CONFIG, counted)
    [entry] = files(tmp_path / "c")
    good = entry.read_bytes()
    entry.write_bytes(good[:-8] if damage is None else damage)
    np.testing.assert_array_equal(PreparedCache(tmp_path / "c", 10**9).get(case, CONFIG, counted), whole)
    assert len(counted.made) == 2
    assert entry.read_bytes() == good


def test_it_stays_within_its_bound_and_drops_the_longest_unused(cases: list[Case], tmp_path: Path) -> None:
    for case in cases[:3]:
        PreparedCache(tmp_path / "c", 3 * SIZE).get(case, CONFIG, _prepared)
    cache, counted = PreparedCache(tmp_path / "c", 3 * SIZE), Counted()
    for age, case in enumerate(cases[:3]):
        os.utime(cache._path(case, CONFIG), times=(time.time() - 1000 + age,) * 2)
    cache = PreparedCache(tmp_path / "c", 3 * SIZE)
    cache.get(cases[0], CONFIG, counted)  # the oldest, but in use now
    for case in cases[3:]:
        cache.get(case, CONFIG, counted)
    assert len(files(tmp_path / "c")) == 3
    kept = {case.name for case in cases if cache._path(case, CONFIG).exists()}
    assert kept == {cases[0].name, cases[3].name, cases[4].name}  # what this run uses is not pushed out by itself
    assert counted.made == [case.name for case in cases[3:]]


def test_many_threads_and_caches_at_once(cases: list[Case], tmp_path: Path) -> None:
    caches = [PreparedCache(tmp_path / "c", 10**9) for _ in range(4)]
    jobs = [(cache, case) for cache in caches for case in cases] * 3
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda job: job[0].get(job[1], CONFIG, _prepared), jobs))
    for (_, case), got in zip(jobs, found, strict=True):
        np.testing.assert_array_equal(got, _prepared(case, CONFIG))
    assert len(files(tmp_path / "c")) == len(cases)  # and nothing half-written beside them


def test_a_folder_that_takes_nothing_costs_nothing(cases: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, counted = PreparedCache(tmp_path / "c", 10**9), Counted()
    (tmp_path / "c").rmdir()
    (tmp_path / "c").write_text("a file where the folder was")
    for case in cases[:2]:
        np.testing.assert_array_equal(cache.get(case, CONFIG, counted), _prepared(case, CONFIG))
    assert len(counted.made) == 2
    monkeypatch.setenv("RESHIFT_CACHE", str(tmp_path / "c"))
    monkeypatch.setenv("RESHIFT_PREPARED_GB", "1")
    assert prepared_cache() is None


def test_switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepared_cache() is None  # RESHIFT_CACHE=off, as in all tests
    monkeypatch.setenv("RESHIFT_CACHE", str(tmp_path))
    assert prepared_cache() is None  # nobody asked for it
    monkeypatch.setenv("RESHIFT_PREPARED_GB", "0.5")
    found = prepared_cache()
    assert found is not None
    assert found.folder == tmp_path / "prepared"
    assert found.folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("RESHIFT_PREPARED_GB", "0")
    assert prepared_cache() is None
    for wrong in ("much", "nan", "inf"):
        monkeypatch.setenv("RESHIFT_PREPARED_GB", wrong)
        with pytest.raises(UserError, match="RESHIFT_PREPARED_GB"):
            prepared_cache()


def test_streaming_uses_it_and_memory_does_not(cases: list[Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RESHIFT_PREPARED_GB", "1")
    held = Source(cases, CONFIG, CPU)
    assert not (tmp_path / "cache").exists()
    Source(cases, STREAM, CPU).check()  # as before training: fills it
    assert len(files(tmp_path / "cache")) == len(cases)
    monkeypatch.setattr("reshift.data.prepared_cache.read_image", None)  # nothing may be decoded again
    streamed = Source(cases, STREAM, CPU)
    assert torch.equal(torch.cat(list(held.batches())), torch.cat(list(streamed.batches())))


def test_a_bad_file_is_reported_as_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RESHIFT_PREPARED_GB", "1")
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    for path, words in ((bad, "not a PNG"), (tmp_path / "none.png", "no such file")):
        with pytest.raises(UserError, match=words):
            Source([case_of(path)], DataConfig(size=32, memory_gb=1e-9), CPU).check()
    assert not files(tmp_path / "cache")
