"""``reshift bench`` from end to end on small phantoms: what is run, what is not run again, and the messages."""

import json
import shutil
from pathlib import Path

import pytest
from bench_suites import BRIGHTNESS, DAE, HEAD, IMPOSSIBLE, SWEEP, cells_in, results_in, times, write_suite
from helpers import Cli, noise, refused, save

from reshift.data.phantom import write_phantom

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.fixture
def tiny(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, run_cli: Cli) -> Path:
    """A finished run of two methods."""
    done = tmp_path_factory.getbasetemp() / "tiny-bench"
    if not done.exists():
        found = run_cli("bench", write_suite(tmp_path, HEAD, BRIGHTNESS, DAE), "--out", done)
        assert found.code == 0, found.err
    return Path(shutil.copytree(done, tmp_path / "out"))


def test_cells_of_other_machines_are_used_under_any_name(tiny: Path, run_cli: Cli, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, HEAD, BRIGHTNESS, DAE)
    for path in sorted((tiny / "cells").glob("*.json")):
        path.rename(path.with_name(f"from-elsewhere-{path.name[:9]}.json"))
    shutil.rmtree(tiny / "models")
    assert "2 finished and valid, 0 to run" in run_cli("bench", suite, "--out", tiny).out
    assert not (tiny / "models").exists()


def test_a_damaged_cell_is_one_warning_and_is_run_again(tiny: Path, run_cli: Cli, tmp_path: Path) -> None:
    suite, before = write_suite(tmp_path, HEAD, BRIGHTNESS, DAE), results_in(tiny)
    [path] = (tiny / "cells").glob("brain-dae-*.json")
    path.write_bytes(path.read_bytes()[:300])
    again = run_cli("bench", suite, "--out", tiny)
    assert again.code == 0
    assert [line for line in again.err.splitlines() if line.startswith("warning")] == [
        f"warning: {path}: damaged or incomplete; left out, and run again if the suite has it"
    ]
    assert results_in(tiny) == before


def test_a_suite_that_was_edited(tiny: Path, run_cli: Cli, tmp_path: Path) -> None:
    changed = DAE.replace("[4, 8]", "[8, 8]")
    suite = write_suite(tmp_path, HEAD, changed, SWEEP.replace('"absolute", ', ""))
    found = run_cli("bench", suite, "--out", tiny)
    assert found.code == 0
    lines = found.out.splitlines()
    assert lines[0] == "tiny: 2 cells, 0 finished and valid, 2 to run"
    assert "finished, but with other settings (kept; --all shows them): brain-dae-0" in lines
    assert "finished, but not in this suite (kept; --all shows them): brain-brightness-0" in lines
    assert len(cells_in(tiny)) == 4
    assert "brightness" not in (tiny / "tables.md").read_text()
    assert run_cli("bench", suite, "--out", tiny, "--tables-only", "--all").code == 0
    assert "brightness" in (tiny / "tables.md").read_text()


def test_a_new_label_needs_no_new_run(tiny: Path, run_cli: Cli, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, HEAD, BRIGHTNESS + 'label = "How bright"\n', DAE)
    found = run_cli("bench", suite, "--out", tiny)
    assert "2 finished and valid, 0 to run" in found.out
    assert "How bright" in (tiny / "tables.md").read_text()
    assert list((tiny / "cells").glob("brain-how-bright-0-*.json"))


def test_a_failing_cell_does_not_stop_the_others(run_cli: Cli, tmp_path: Path) -> None:
    suite, out = write_suite(tmp_path, HEAD, IMPOSSIBLE, BRIGHTNESS), tmp_path / "out"
    found = run_cli("bench", suite, "--out", out)
    assert found.code == 3
    bad, good = sorted(cells_in(out).values(), key=lambda cell: str(cell["row"]))
    assert (bad["status"], good["status"]) == ("failed", "done")
    assert bad["error"].startswith("method 'dae': data.size 32 is not a multiple of 64")
    assert bad["error"] in found.err
    again = run_cli("bench", suite, "--out", out)
    assert again.code == 3
    assert "failed before, tried again: brain-impossible-0" in again.out


def test_missing_data_and_a_cell_from_a_machine_that_has_it(tiny: Path, run_cli: Cli, tmp_path: Path) -> None:
    elsewhere = HEAD.split("[datasets.brain]", maxsplit=1)[0] + '[datasets.brain]\nmanifest = "brain/manifest.csv"\n'
    suite = write_suite(tmp_path, elsewhere, BRIGHTNESS, DAE, '[[rows]]\nmethod = "area"\n')
    found = run_cli("bench", suite, "--out", tiny, "--data", tmp_path / "none")
    assert found.code == 3
    assert "3 cells, 2 finished and valid, 0 to run" in found.out
    [line] = [line for line in found.err.splitlines() if line.startswith("warning: blocked")]
    assert str(tmp_path / "none" / "brain" / "manifest.csv") in line
    assert line.endswith("without it 1 cells cannot be run: brain-area-0")
    assert "brightness" in (tiny / "tables.md").read_text()


def test_a_dry_run_lists_and_estimates(tiny: Path, run_cli: Cli, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, "seeds = [0, 1]", HEAD, BRIGHTNESS, DAE, '[[rows]]\nmethod = "ae"\n', IMPOSSIBLE)
    before = times(tiny)
    found = run_cli("bench", suite, "--out", tiny, "--dry-run", "--only", "brain-[!b]*")
    assert found.code == 0
    lines = found.out.splitlines()
    assert "cached    brain-dae-0" in lines
    assert "to run    brain-dae-1" in lines
    assert "left out  brain-brightness-1" in lines
    costs = {line.split()[1].strip(","): line for line in lines if line.startswith("cost: ")}
    assert costs["dae"].endswith("from 1 finished cell")
    assert costs["ae"].endswith("from a few steps and predictions tried now")
    assert "unknown: method 'dae': data.size 32" in costs["Impossible"]  # the finished cell of that method has other settings
    assert lines[-1].startswith("cost: about ")
    assert times(tiny) == before


def test_a_dry_run_of_a_cell_that_cannot_work(run_cli: Cli, tmp_path: Path) -> None:
    found = run_cli("bench", write_suite(tmp_path, HEAD, IMPOSSIBLE), "--out", tmp_path / "out", "--dry-run")
    assert found.code == 0
    assert "Impossible, 1 cell in 1 training: unknown: method 'dae': data.size 32" in found.out


def test_only_some_cells_and_tracking_them(tiny: Path, run_cli: Cli, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, "seeds = [1, 2]", HEAD, BRIGHTNESS)
    assert run_cli("bench", suite, "--out", tiny, "--only", "*-2", "--track", "tensorboard").code == 0
    assert list((tiny / "tensorboard").rglob("*tfevents*"))
    assert sorted(json.loads(path.read_text())["seed"] for path in (tiny / "cells").glob("*brightness*")) == [0, 2]
    refused(run_cli("bench", suite, "--out", tiny, "--only", "dea*"), "--only dea*", "brain-brightness-1")


def test_refusals(run_cli: Cli, tmp_path: Path) -> None:
    suite, out = write_suite(tmp_path, HEAD, BRIGHTNESS), tmp_path / "out"
    refused(run_cli("bench", suite, "--out", out, "--engine", "rai"), "unknown engine 'rai'; did you mean 'ray'?")
    refused(run_cli("bench", suite, "--out", out, "--track", "mlflaw"), "did you mean 'mlflow'?")
    refused(run_cli("bench", suite, "--out", out, "--device", "tpu"), "device 'tpu'")
    refused(run_cli("bench", tmp_path / "none.toml", "--out", out), "none.toml: no such config file")
    (tmp_path / "file").write_text("")
    refused(run_cli("bench", suite, "--out", tmp_path / "file" / "out"), "cannot write there")


def test_bad_files_of_a_set_are_named_and_the_rest_goes_on(run_cli: Cli, tmp_path: Path) -> None:
    """Every test image is in the results or named; what is wrong with a set does not stop the others."""
    folder = write_phantom(tmp_path / "set", train=16, test_normal=4, test_abnormal=4, size=32, slices=1).parent
    header, *rows = (folder / "manifest.csv").read_text().splitlines()
    normal, *_, ill = (i for i, row in enumerate(rows) if ",test," in row)
    damaged, mask, small = folder / rows[normal].split(",")[0], rows[ill].split(",")[1], folder / "masks" / "small.png"
    damaged.write_bytes(damaged.read_bytes()[:150])
    save(noise(0, 20, 24) > 99, small)
    (folder / "bad.csv").write_text("\n".join([header, *rows]).replace(mask, "masks/small.png") + "\n")
    (folder / "unlabelled.csv").write_text("\n".join([header, *rows]).replace(",1,test,", ",,test,") + "\n")
    sets = "".join(f'[datasets.{name}]\nmanifest = "set/{name}.csv"\n' for name in ("bad", "unlabelled"))
    suite = write_suite(tmp_path, HEAD, sets, BRIGHTNESS)
    found = run_cli("bench", suite, "--data", tmp_path, "--out", tmp_path / "out")
    assert found.code == 3
    warnings = [line for line in found.err.splitlines() if line.startswith("warning: ")]
    blocked, *left_out = warnings
    assert "unlabelled.csv, line" in blocked
    assert "has no label" in blocked
    assert [line.split(": ")[2] for line in left_out] == [str(damaged), str(small)]
    assert all(line.endswith("; 1 cells have no result for it: bad-brightness-0") for line in left_out)
    cells = {cell["dataset"]: cell for cell in cells_in(tmp_path / "out").values()}
    assert set(cells) == {"brain", "bad"}
    assert len(cells["bad"]["paired"]["scores"]) + len(cells["bad"]["refused"]) == 8
    assert cells["brain"]["refused"] == []
