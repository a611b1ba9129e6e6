"""One series from the spool to its results, without an archive."""

from pathlib import Path

import pytest
from pacs_studies import write_study

from reshift.data.dicom import series
from reshift.errors import UserError
from reshift.inference.model import load_model
from reshift.pacs.scoring import _failure, score_series

pytest.importorskip("highdicom", reason="reshift[pacs] is not installed")


def spooled(folder: Path, slices: int) -> Path:
    """A fetched series; files are named by hashes."""
    spool = folder / "spool" / "CT-0123456789abcdef"
    spool.mkdir(parents=True)
    for number, path in enumerate(write_study(folder, 1, slices)):
        path.rename(spool / f"{number:016x}.dcm")
    return spool


def test_a_series_of_one_image_has_results(tiny_bundle: Path, tmp_path: Path) -> None:
    """As a radiograph has."""
    found = score_series(load_model(tiny_bundle, "cpu"), spooled(tmp_path, 1), tmp_path / "out", "none")
    assert found.score is not None
    assert {Path(result.path).stem for result in found.results} >= {"map", "mask", "report"}


def test_a_slice_that_cannot_be_read_at_first_fails_its_series(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not be scored by itself beside a stack that lacks it; the next try begins anew."""
    real, spool, model = series.find_series, spooled(tmp_path, 4), load_model(tiny_bundle, "cpu")
    first, *others = sorted(spool.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(series, "find_series", lambda folder, _: real(folder, others)._replace(damaged=[first]))
        with pytest.raises(UserError, match="a slice could not be read"):
            score_series(model, spool, tmp_path / "out", "none")
    found = score_series(model, spool, tmp_path / "out", "none")
    assert all("dicom/CT-0123456789abcdef/" in result.path for result in found.results)


def test_a_series_without_a_hash_was_not_read_whole() -> None:
    record = {"input": "spool", "slice": None, "error": None, "sha256": "0"}
    assert _failure([record], Path("spool")) is None
    assert _failure([{**record, "sha256": None}], Path("spool")) == "a slice could not be read; run it again"
