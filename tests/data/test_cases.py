"""Lists of cases: subjects stay whole when cases are held out, and the fingerprint depends on every byte."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers import save_many
from hypothesis import given, settings
from hypothesis import strategies as st

from reshift.data.cases import Case, fingerprint, held_out_share, hold_out
from reshift.data.manifest import load_cases


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """``images/000.png`` … ``images/005.png``."""
    save_many(tmp_path / "images", 6)
    return tmp_path


def shuffled(seed: int, n: int) -> list[int]:
    order: list[int] = np.random.default_rng(seed).permutation(n).tolist()
    return order


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30), share=st.floats(0, 0.99), seed=st.integers(0, 99))
def test_holding_out_keeps_subjects_whole(sizes: list[int], share: float, seed: int) -> None:
    names = [f"s{i}" for i, size in enumerate(sizes) for _ in range(size)]
    cases = [Case(f"{i}.png", Path(f"{i}.png"), None, name, 0, "train", "") for i, name in enumerate(names)]
    kept, held = hold_out(cases, share, partial(shuffled, seed))
    assert sorted(kept + held) == sorted(cases)
    assert not {case.subject for case in kept} & {case.subject for case in held}
    assert kept
    wanted = round(share * len(cases))
    assert len(held) < wanted + max(sizes)  # at most the last subject too many
    assert len(held) >= wanted or len({case.subject for case in kept}) == 1
    assert (kept, held) == hold_out(cases, share, partial(shuffled, seed))


def test_another_seed_holds_out_other_cases() -> None:
    cases = [Case(f"{i}.png", Path(f"{i}.png"), None, f"s{i}", 0, "train", "") for i in range(50)]
    held = [{case.name for case in hold_out(cases, 0.2, partial(shuffled, seed))[1]} for seed in (0, 1)]
    assert [len(names) for names in held] == [10, 10]
    assert held[0] != held[1]


def test_the_fingerprint_depends_on_every_byte_and_every_name(folder: Path) -> None:
    before = fingerprint(load_cases(folder))
    assert fingerprint(load_cases(folder)[::-1]) == before
    path = folder / "images" / "003.png"
    path.rename(folder / "images" / "999.png")
    renamed = fingerprint(load_cases(folder))
    (folder / "images" / "999.png").rename(path)
    assert fingerprint(load_cases(folder)) == before
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    assert len({before, renamed, fingerprint(load_cases(folder))}) == 3


def test_the_fingerprint_accepts_names_that_are_not_utf8(folder: Path) -> None:
    (folder / "images" / "000.png").rename(folder / "images" / "caf\udce9.png")
    assert len(fingerprint(load_cases(folder))) == 32


@pytest.mark.parametrize(
    ("subjects", "images", "share"),
    [(10, 2, 0.2), (49, 2, 0.2), (50, 2, 0.4), (80, 2, 0.25), (100, 2, 0.2), (8000, 2, 0.125), (60, 200, 1 / 3), (10, 2000, 0.2)],
)
def test_more_is_held_out_where_that_makes_enough_subjects(subjects: int, images: int, share: float) -> None:
    cases = [Case(f"{i}", Path(f"{i}.png"), None, f"s{i % subjects}", 0, "train", "") for i in range(images * subjects)]
    assert held_out_share(cases, "auto") == pytest.approx(share)
    assert held_out_share(cases, 0.1) == 0.1
