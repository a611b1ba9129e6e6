"""A second evaluation in one folder replaces the first as a whole, or leaves it as it is."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from helpers import Cli, labelled, refused, start
from processes import wait_until

SLOWLY = """
import itertools, time, reshift.evaluation.evaluate as module
save, count = module._save_arrays, itertools.count()
module._save_arrays = lambda *args: (time.sleep(60 * (next(count) == 2)), save(*args))[1]
"""


@pytest.fixture(scope="module")
def other_bundle(tmp_path_factory: pytest.TempPathFactory, folder_of_images: Path) -> Path:
    """Another model: other settings, and another size of the heat-maps."""
    from reshift.training.run import resolve, train_run

    config = resolve("brightness", "paper", [{"data": {"size": 48}, "calibrate": {"features": "off"}, "seed": 1}])
    return train_run(config, folder_of_images, tmp_path_factory.mktemp("other"))


def files(folder: Path) -> dict[str, bytes]:
    """The results, without what differs between two equal runs."""
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    metrics: dict[str, Any] = json.loads(found.pop("metrics.json"))
    metrics.pop("seconds")
    del found["report.html"]  # shows the seconds
    return {**found, "metrics": json.dumps(metrics).encode()}


def test_results_of_two_models_are_not_mixed(run_cli: Cli, tiny_bundle: Path, other_bundle: Path, tmp_path: Path) -> None:
    many, few = labelled(tmp_path / "many"), labelled(tmp_path / "few", normal=5, abnormal=0)
    used, fresh = tmp_path / "used", tmp_path / "fresh"
    assert run_cli("evaluate", tiny_bundle, "--data", many, "--out", used).code == 0
    assert {"pixels.npz", "subjects.npz", "arrays/00007.npz"} <= set(files(used))
    first = json.loads((used / "metrics.json").read_text())["model_sha256"]
    for out in (used, fresh):
        assert run_cli("evaluate", other_bundle, "--data", few, "--out", out).code == 0
    assert files(used) == files(fresh)
    known = json.loads((other_bundle / "config.json").read_text())["model_sha256"]
    assert json.loads((used / "metrics.json").read_text())["model_sha256"] == known
    assert first == json.loads((tiny_bundle / "config.json").read_text())["model_sha256"]


def test_an_evaluation_that_fails_leaves_the_earlier_one(
    run_cli: Cli, tiny_bundle: Path, other_bundle: Path, tmp_path: Path
) -> None:
    data, out = labelled(tmp_path / "data"), tmp_path / "out"
    assert run_cli("evaluate", tiny_bundle, "--data", data, "--out", out).code == 0
    before = files(out)
    process = start("evaluate", other_bundle, "--data", data, "--out", out, prelude=SLOWLY)
    wait_until(lambda: len(list(out.rglob("*.npz"))) > len([name for name in before if name.endswith(".npz")]), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert {name: content for name, content in files(out).items() if name in before and name != ".lock"} | {
        ".lock": b""
    } == before
    for image in (tmp_path / "data" / "images").iterdir():
        image.write_bytes(b"damaged")
    refused(run_cli("evaluate", other_bundle, "--data", data, "--out", out), "could be scored")
    assert files(out) == before  # also: what the killed process left is gone
