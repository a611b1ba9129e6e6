"""Bundles that were written once still load, and give the same scores and metrics.

``tests/frozen`` holds two small bundles trained on phantom brains, and what the version that wrote them said of the test images.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from reshift.data.manifest import load_cases
from reshift.data.phantom import write_phantom
from reshift.errors import UserError
from reshift.evaluation.evaluate import evaluate
from reshift.inference.model import Model, load_model
from reshift.inference.score import score

FROZEN = Path(__file__).parent / "frozen"
METHODS = ("dmd", "reshift")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images the bundles were trained and judged on; their pixels follow from the seed alone."""
    folder = tmp_path_factory.mktemp("phantom")
    return write_phantom(folder, "brain", train=24, test_normal=8, test_abnormal=8, size=64, seed=3)


def expected(method: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FROZEN / method / "expected.json").read_text())
    return found


def load(method: str) -> Model:
    return load_model(FROZEN / method / "bundle", "cpu")


def close(found: Any, wanted: Any) -> None:
    """Equal in shape and type, numbers to four digits: processors differ in the last ones, and networks add that up."""
    if isinstance(wanted, dict):
        assert set(found) >= set(wanted)
        for name, value in wanted.items():
            close(found[name], value)
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for mine, theirs in zip(found, wanted, strict=True):
            close(mine, theirs)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    else:
        assert found == wanted


@pytest.mark.parametrize("method", METHODS)
def test_metrics_of_a_frozen_bundle(method: str, manifest: Path, tmp_path: Path) -> None:
    tests = [case for case in load_cases(manifest) if case.split == "test"]
    metrics, _ = evaluate(load(method), tests, tmp_path, "frozen")
    close(metrics, expected(method)["metrics"])


@pytest.mark.parametrize("method", METHODS)
def test_scores_of_a_frozen_bundle(method: str, manifest: Path, tmp_path: Path) -> None:
    score(load(method), [manifest], tmp_path)
    records = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    close({Path(record["input"]).name: record for record in records}, expected(method)["scores"])


def test_a_bundle_of_the_first_version_of_the_default_method_is_refused(tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(FROZEN / "reshift" / "bundle", tmp_path / "bundle"))
    about = json.loads((bundle / "config.json").read_text())
    about["config"]["model"] = {"members": 4, "steps": 800}
    (bundle / "config.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match=r"config\.json: .*first version of this method.*train again"):
        load_model(bundle, "cpu")
