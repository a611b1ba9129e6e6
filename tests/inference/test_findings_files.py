"""``findings.json`` and ``findings.csv`` of a run: complete, the same after a re-run, and whole after a kill."""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from dicom_files import series
from helpers import Cli, read_records, refused, save
from processes import wait_until
from volumes import canonical_affine, save_nifti, stored


def spotted(height: int = 32, width: int = 32, at: tuple[int, int] = (8, 10)) -> Any:
    image = np.full((height, width), 20, dtype=np.uint8)
    image[at[0] : at[0] + 6, at[1] : at[1] + 9] = 255
    return image


def scans(folder: Path) -> Path:
    save(spotted(), folder / "a.png")
    save(np.full((32, 32), 20, np.uint8) + np.eye(32, dtype=np.uint8), folder / "calm.png")
    series(folder / "ct", 5)
    head = np.full((8, 32, 32), 50.0)
    head[4:6, 8:14, 8:14] = 900.0
    save_nifti(folder / "head.nii.gz", *stored(head, ((2, 1, 0), (False,) * 3), canonical_affine(head.shape)))
    return folder


def tables(out: Path) -> tuple[dict[str, Any], list[dict[str, str]]]:
    with (out / "findings.csv").open(newline="") as file:
        return json.loads((out / "findings.json").read_text()), list(csv.DictReader(file))


def test_a_run_leaves_both_tables_and_a_second_the_same(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    folder, out = scans(tmp_path / "in"), tmp_path / "out"
    score = ("score", tiny_bundle, folder, "--out", out, "--min-diameter", 2, "--preview")
    assert run_cli(*score).code == 0
    found, rows = tables(out)
    assert len(found["findings"]) == len(rows) > 1
    assert (found["min_diameter"], found["cases_without"]) == (2.0, 0)
    records = {record["input"]: record for record in read_records(out) if record["slice"] is None}
    for finding, row in zip(found["findings"], rows, strict=True):
        assert finding["peak"] > found["threshold"]
        assert finding["longest_diameter"] >= 2.0
        assert finding["p_value"] == records[finding["input"]]["p_value"]
        assert float(row["centroid_y"]) == finding["centroid"][1]
        assert row["input"] == finding["input"]
        assert float(row["volume"] or row["area"]) == (finding["volume"] or finding["area"])
    [head] = [finding for finding in found["findings"] if finding["input"].endswith("head.nii.gz")]
    slices = [r["p_value"] for r in read_records(out) if r["input"] == head["input"] and r["slice"] in (4, 5)]
    assert (head["space"], head["slices"], head["slice_p_value"]) == ("RAS+", [4, 5], min(slices))
    assert {Path(finding["input"]).name for finding in found["findings"]} <= {"a.png", "ct", "head.nii.gz"}
    before = [(out / name).read_bytes() for name in ("findings.json", "findings.csv")]
    assert run_cli(*score).code == 0
    assert [(out / name).read_bytes() for name in ("findings.json", "findings.csv")] == before
    assert sorted(path.name for path in (out / "previews").rglob("*.png")) == [
        "a.png",
        "calm.png",
        "ct.png",
        "head.png",
    ]
    sizes = {path.name: PIL.Image.open(path).size for path in (out / "previews").rglob("*.png")}
    assert (sizes["a.png"], sizes["ct.png"]) == ((320, 320), (960, 320))  # one image, three slices


def test_a_folder_keeps_one_minimum_size(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    image, out = save(spotted(), tmp_path / "a.png"), tmp_path / "out"
    assert run_cli("score", tiny_bundle, image, "--out", out).code == 0
    refused(run_cli("score", tiny_bundle, image, "--out", out, "--min-diameter", 5), "--min-diameter 3")
    assert run_cli("score", tiny_bundle, image, "--out", tmp_path / "other", "--min-diameter", 50).code == 0
    assert tables(tmp_path / "other")[1] == []


def test_a_killed_run_is_completed(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    for i in range(12):
        save(spotted(at=(i, 5)), tmp_path / "in" / f"{i:02d}.png")
    score = ["score", str(tiny_bundle), str(tmp_path / "in"), "--out"]
    assert run_cli(*score, tmp_path / "whole").code == 0
    slow = "import time, reshift.inference.images as m; w = m.write_case; m.write_case = lambda *a: (time.sleep(0.3), w(*a))[1]"
    code = (
        f"{slow}; import sys; sys.argv = ['reshift', *{[*score, str(tmp_path / 'cut')]!r}]; from reshift.cli import main; main()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    records = tmp_path / "cut" / "scores.jsonl"
    wait_until(lambda: records.exists() and records.read_bytes().count(b"\n") >= 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert records.read_bytes().count(b"\n") < 12
    assert not (tmp_path / "cut" / "findings.json").exists()
    assert run_cli(*score, tmp_path / "cut").code == 0
    for name in ("findings.json", "findings.csv"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not list((tmp_path / "cut").glob(".*.tmp"))


def test_records_without_findings_are_counted(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    """A folder that an earlier version began keeps its scores."""
    image, out = save(spotted(), tmp_path / "a.png"), tmp_path / "out"
    score = ("score", tiny_bundle, image, "--out", out)
    assert run_cli(*score).code == 0
    record = json.loads((out / "scores.jsonl").read_text())
    del record["findings"], record["not_judged"]
    (out / "scores.jsonl").write_text(json.dumps(record) + "\n")
    assert run_cli(*score).code == 0
    found, rows = tables(out)
    assert (found["findings"], rows, found["cases_without"]) == ([], [], 1)
