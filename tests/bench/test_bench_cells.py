"""Cells as files: complete or absent, identified by their key, and used only if the key matches the contents."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_suites import BRIGHTNESS, DAE, HEAD, SWEEP, cells_in, write_suite

from reshift.bench import compute
from reshift.bench.cells import Event, Spec, Task, read_cells, slug
from reshift.bench.compute import DiskFullError, disk_full, run_task
from reshift.bench.observe import PairedValues
from reshift.bench.plan import group_tasks, plan
from reshift.bench.suite import load_suite
from reshift.errors import Stopped, UserError
from reshift.inference.bundle import load_bundle
from reshift.system.files import atomic_text


def planned(folder: Path, *parts: str) -> Task:
    [task] = group_tasks(plan(load_suite(write_suite(folder, HEAD, *parts)), None, folder).specs, folder)
    return task


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Spec, dict[str, Any]]:
    """A finished cell of the method that needs no training."""
    folder = tmp_path_factory.mktemp("done")
    task = planned(folder, BRIGHTNESS)
    run_task(task, "cpu")
    [cell] = cells_in(folder).values()
    return folder, task.cells[0], cell


def test_a_cell_has_everything_that_tables_need(done: tuple[Path, Spec, dict[str, Any]]) -> None:
    folder, spec, cell = done
    assert (folder / "cells" / spec.file).exists()
    assert spec.file == f"brain-brightness-0-{cell['key'][:8]}.json"
    assert (cell["status"], cell["error"], cell["row"], cell["group"]) == ("done", None, "brightness", "baseline")
    metrics = json.loads((folder / "evaluations" / spec.key / "metrics.json").read_text())
    assert cell["metrics"] == metrics
    assert not (folder / "evaluations" / spec.key / "arrays").exists()
    assert cell["images_per_second"] > 0
    assert str(folder) not in json.dumps(cell)  # it may be published


def test_values_for_paired_tests(done: tuple[Path, Spec, dict[str, Any]]) -> None:
    folder, spec, cell = done
    paired, rows = cell["paired"], (folder / "evaluations" / spec.key / "cases.jsonl").read_text().splitlines()
    cases = [json.loads(row) for row in rows]
    assert paired["inputs"] == [case["input"] for case in cases]
    assert paired["labels"] == [case["label"] for case in cases]
    assert paired["scores"] == pytest.approx([case["score"] for case in cases], rel=1e-5)
    assert [value is None for value in paired["dice"]] == [label == 0 for label in paired["labels"]]
    lesions = [value for value in paired["dice"] if value is not None]
    assert sum(lesions) / len(lesions) == pytest.approx(cell["metrics"]["pixel"]["dice_per_image"], rel=1e-5)
    assert all(value is None or 0 < value <= 1 for value in paired["pixel_ap"])


def test_pixel_ap_of_one_image_leaves_ignored_pixels_out() -> None:
    import numpy as np
    from sklearn.metrics import average_precision_score

    from reshift.inference.stream import Sample

    rng = np.random.default_rng(0)
    heat, mask, ignore = rng.random((8, 8), dtype=np.float32), rng.random((8, 8)) > 0.7, np.zeros((8, 8), bool)
    ignore[:2] = True
    mask &= ~ignore
    found = PairedValues(0.5)._pixels(Sample(None, mask=mask, ignore=ignore, heatmap=heat))  # type: ignore[arg-type]
    dice, ap = found["dice"], found["pixel_ap"]
    assert ap == pytest.approx(average_precision_score(mask[2:].ravel(), heat[2:].ravel()), rel=1e-5)
    called = heat[2:] > 0.5
    assert dice == pytest.approx(2 * (called & mask[2:]).sum() / (called.sum() + mask[2:].sum()), rel=1e-5)


def test_each_damaged_file_is_one_warning(done: tuple[Path, Spec, dict[str, Any]], tmp_path: Path) -> None:
    _, spec, cell = done
    texts = {
        "whole": json.dumps(cell), "half": json.dumps(cell)[:200], "empty": "", "list": "[]", "null": "null",
        "unfinished": json.dumps({**cell, "status": "running"}), "bare": json.dumps({"key": cell["key"], "status": "done"}),
        "other": json.dumps({**cell, "seed": 7}), "no-metrics": json.dumps({**cell, "metrics": None}),
    }  # fmt: skip
    (tmp_path / "cells").mkdir()
    for name, text in texts.items():
        (tmp_path / "cells" / f"{name}.json").write_text(text)
    (tmp_path / "cells" / "binary.json").write_bytes(b"\xff\xfe")
    found, warnings = read_cells(tmp_path)
    assert {path.stem: cell["key"] for path, cell in found.items()} == {"whole": spec.key}
    assert len(warnings) == len(texts)
    assert any("other.json: its key does not match its contents" in line for line in warnings)


def test_a_failing_cell_says_why_and_the_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, events, real = planned(tmp_path, DAE, SWEEP), list[Event](), compute.evaluate_cell

    def evaluate_cell(task: Task, spec: Spec, device: str) -> dict[str, Any]:
        if not spec.predict:
            raise RuntimeError("two\nlines")
        return real(task, spec, device)

    monkeypatch.setattr(compute, "evaluate_cell", evaluate_cell)
    run_task(task, "cpu", events.append)
    assert [(event.kind, event.cell) for event in events] == [
        ("started", "brain-dae-0"), ("failed", "brain-dae-0"),
        ("started", "brain-dae-map-squared-0"), ("done", "brain-dae-map-squared-0"),
    ]  # fmt: skip
    first, second = sorted(cells_in(tmp_path).values(), key=lambda cell: str(cell["status"]))
    assert (first["status"], second["status"], second["error"]) == ("done", "failed", "RuntimeError: two lines")
    assert first["predict"] == {"model": {"map": "squared"}}
    assert read_cells(tmp_path)[1] == []


def test_a_model_that_cannot_be_trained_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def train_model(*_: object) -> None:
        tries.append(1)
        raise UserError("diverged")

    monkeypatch.setattr(compute, "train_model", train_model)
    run_task(planned(tmp_path, DAE, SWEEP), "cpu")
    assert [cell["error"] for cell in cells_in(tmp_path).values()] == ["diverged"] * 2
    assert len(tries) == 1


@pytest.mark.parametrize("error", [Stopped("stopped"), KeyboardInterrupt()])
def test_a_stopped_cell_has_not_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def train_model(*_: object) -> None:
        raise error

    monkeypatch.setattr(compute, "train_model", train_model)
    with pytest.raises(type(error)):
        run_task(planned(tmp_path, BRIGHTNESS), "cpu")
    assert cells_in(tmp_path) == {}


@pytest.mark.parametrize("step", ["train_model", "evaluate_cell"])
def test_a_full_disk_is_not_a_failure_of_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(compute, step, full)
    with pytest.raises(DiskFullError, match="make room"):
        run_task(planned(tmp_path, BRIGHTNESS), "cpu")
    assert cells_in(tmp_path) == {}
    monkeypatch.setattr("reshift.system.files.os.fsync", full)
    with pytest.raises(UserError) as caught:
        atomic_text(tmp_path / "x", "x")
    assert disk_full(caught.value)
    assert not disk_full(UserError("x"))


def test_settings_that_change_the_training_are_refused_at_inference(tmp_path: Path) -> None:
    task = planned(tmp_path, DAE)
    compute.train_model(task, "cpu")
    for change in ({"noise_std": 0.1}, {"widths": [4, 4]}):
        spec = replace(task.cells[0], predict={"model": change})
        with pytest.raises(UserError, match="'predict' settings change what is trained; give them under 'set'"):
            compute.evaluate_cell(task, spec, "cpu")


def test_predicting_with_the_trained_settings_changes_nothing(tmp_path: Path) -> None:
    """Thresholds for other prediction settings are computed as in training."""
    task = planned(tmp_path, DAE)
    compute.train_model(task, "cpu")
    bundle = load_bundle(task.folder / "bundle")
    again = compute.predict_bundle(bundle, replace(task.cells[0], predict={"model": {"map": "absolute"}}), "cpu")
    assert again.calibration == bundle.calibration


def test_other_prediction_settings_keep_what_the_normals_have_decided(tmp_path: Path) -> None:
    """``overall`` and ``symmetry`` are "auto" in the suite; the trained model has, or has not, these witnesses."""
    small = """steps = 1, denoising_steps = 1, widths = [8, 8, 8, 8], denoising_widths = [8, 8, 8], bank = 8, sample = 50,
        folds = 1, features = ["efficientnet-lite0"]"""
    row = f'[[rows]]\nmethod = "reshift"\nset = {{ model = {{ {" ".join(small.split())}, overall = "on" }} }}\n'
    task = planned(tmp_path, row + 'predict = { model = { silent = ["overall"] } }\n')
    compute.train_model(task, "cpu")
    trained = load_bundle(task.folder / "bundle")
    decided = trained.config.model["symmetry"]
    assert decided in ("on", "off")
    silent = compute.predict_bundle(trained, task.cells[0], "cpu")
    assert silent.config.model == {**trained.config.model, "silent": ("overall",)} | {"silent": silent.config.model["silent"]}
    assert list(silent.config.model["silent"]) == ["overall"]


def test_slugs() -> None:
    assert slug("Dif-fuse† (t*=100)") == "dif-fuse-t-100"
    assert slug("†") == "row"
