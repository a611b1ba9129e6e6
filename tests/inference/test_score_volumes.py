"""Scoring volumes, and learning from and evaluating on them: every slice at its place, nothing lost by bad files and re-runs."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from helpers import BRIGHTNESS, Cli, noise, read_records, refused, save, write_manifest
from volumes import SHAPE, Orientation, canonical_affine, head, orientations, save_head, save_nifti, stored

from reshift.config import DataConfig
from reshift.data import read
from reshift.data.cases import expand_volumes, fingerprint
from reshift.data.manifest import load_cases
from reshift.data.nifti import read_nifti
from reshift.data.source import Source
from reshift.data.volume import Volume
from reshift.errors import UserError
from reshift.inference.inputs import find_cases
from reshift.inference.records import FIELDS

SAGITTAL: Orientation = ((2, 0, 1), (False, True, False))  # slices are the second axis, and run downwards
PLAIN: Orientation = ((2, 1, 0), (False, False, False))


def loaded(path: Path) -> Any:
    return nibabel.load(path)


@pytest.mark.parametrize("orientation", [PLAIN, SAGITTAL])
def test_the_map_of_a_volume(run_cli: Cli, tiny_bundle: Path, tmp_path: Path, orientation: Orientation) -> None:
    path, out = save_head(tmp_path / "scan.nii.gz", orientation=orientation), tmp_path / "out"
    done = run_cli("score", tiny_bundle, path, "--out", out)
    assert done.code == 0
    assert "1 cases, 0 failed" in done.out
    scan, heat = loaded(path), loaded(out / "maps" / "scan.nii.gz")
    np.testing.assert_array_equal(scan.affine, heat.affine)
    assert (heat.shape, heat.get_data_dtype()) == (scan.shape, np.float32)
    values, real = heat.get_fdata(dtype=np.float32), scan.get_fdata(dtype=np.float32)
    looked = np.isfinite(values)
    assert np.corrcoef(values[looked], real[looked])[0, 1] > 0.99  # the method's map is the brightness itself
    *slices, whole = read_records(out)
    volume = read_nifti(path)
    axis = [code in "SI" for code in nibabel.aff2axcodes(scan.affine)].index(True)
    chosen = sorted(volume.native_index(k) for k in volume.foreground_slices(0.1))
    assert 3 < len(chosen) < SHAPE[0]
    assert [record["slice"] for record in slices] == chosen
    assert [at for at in range(scan.shape[axis]) if np.take(looked, at, axis).any()] == chosen
    for record in slices:
        assert (record["map"], record["error"]) == ("maps/scan.nii.gz", None)
        assert 0 < record["p_value"] <= 1
        assert np.nanpercentile(np.take(values, record["slice"], axis), 99) == pytest.approx(record["score"], rel=0.1)
    assert whole["slice"] is None
    assert whole["score"] == pytest.approx(math.fsum(sorted(r["score"] for r in slices)[-5:]) / 5)
    assert (whole["p_value"], whole["flag"], whole["map"]) == (None, None, "maps/scan.nii.gz")
    assert [path.name for path in (out / "overlays").iterdir()] == ["scan.png"]


def test_every_storage_order_gives_the_same_scores(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    for i, orientation in enumerate(orientations()):
        if i % 5 == 0:
            save_head(tmp_path / "in" / f"{i:02d}.nii", orientation=orientation)
    assert run_cli("score", tiny_bundle, tmp_path / "in", "--out", tmp_path / "out").code == 0
    wholes = [record for record in read_records(tmp_path / "out") if record["slice"] is None]
    assert len(wholes) == 10
    assert len({record["score"] for record in wholes}) == 1
    assert wholes[1]["map"] == "maps/in/05.nii.gz"


def test_pictures_and_volumes_and_bad_ones(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    save(noise(1), folder / "a.png")
    save_head(folder / "b.nii.gz")
    save_head(folder / "c.nii.gz")
    whole = (folder / "c.nii.gz").read_bytes()
    (folder / "c.nii.gz").write_bytes(whole[:900])
    save_nifti(folder / "d.nii", np.zeros((20, 20, 4)), np.eye(4))
    save(noise(2), folder / "e.png")
    done = run_cli("score", tiny_bundle, folder, "--out", out)
    assert done.code == 3
    assert "5 cases, 2 failed" in done.out
    records = read_records(out)
    names = list(dict.fromkeys(Path(record["input"]).name for record in records))
    assert names == ["a.png", "b.nii.gz", "c.nii.gz", "d.nii", "e.png"]
    errors = {Path(record["input"]).name: record["error"] for record in records if record["error"]}
    assert "cut short" in errors["c.nii.gz"]
    assert "every voxel has the value 0" in errors["d.nii"]
    assert all(tuple(json.loads(line)) == FIELDS for line in (out / "scores.jsonl").read_text().splitlines())
    before = (out / "maps" / "in" / "b.nii.gz").stat().st_mtime_ns
    (folder / "c.nii.gz").write_bytes(whole)
    assert run_cli("score", tiny_bundle, folder, "--out", out).code == 3
    assert (out / "maps" / "in" / "b.nii.gz").stat().st_mtime_ns == before  # done is done
    again = read_records(out)
    assert [r for r in again if "b.nii" in r["input"]] == [r for r in records if "b.nii" in r["input"]]
    assert [r["slice"] for r in again if "c.nii" in r["input"]] == [r["slice"] for r in again if "b.nii" in r["input"]]
    assert not [path for path in out.rglob(".*") if path.name != ".lock"]


def test_a_volume_stopped_half_way_is_scored_again(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    path, out = save_head(tmp_path / "scan.nii.gz"), tmp_path / "out"
    run_cli("score", tiny_bundle, path, "--out", out)
    records = read_records(out)
    lines = (out / "scores.jsonl").read_bytes().splitlines(keepends=True)
    (out / "scores.jsonl").write_bytes(b"".join(lines[:3]))
    assert run_cli("score", tiny_bundle, path, "--out", out).code == 0
    assert read_records(out) == records
    assert len(list((out / "maps").iterdir())) == 1


def test_names_of_maps(tmp_path: Path) -> None:
    for name in ("a/scan.nii", "a/scan.nii.gz", "b/scan.nii.gz", "b/SCAN.NII.GZ"):
        save_head(tmp_path / name)
    cases = find_cases(
        [tmp_path / "a" / "scan.nii", tmp_path / "a" / "scan.nii.gz", tmp_path / "b" / "scan.nii.gz", tmp_path / "b"]
    )
    assert [case.name for case in cases] == ["scan.nii.gz", "scan~2.nii.gz", "scan~3.nii.gz", "b/SCAN.nii.gz"]


def test_without_calibration_there_is_no_montage(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_bundle, tmp_path / "bundle")
    (tmp_path / "bundle" / "calibration.json").unlink()
    out = tmp_path / "out"
    assert run_cli("score", tmp_path / "bundle", save_head(tmp_path / "a.nii"), "--out", out).code == 0
    assert not (out / "overlays").exists()


def volumes_and_masks(folder: Path, *, train: int = 3, test: int = 2) -> Path:
    """A manifest of heads; the tested ones have a bright lesion in two slices, drawn in another storage order."""
    rows = []
    for i in range(train + test):
        anatomy, mask = head(i), np.zeros(SHAPE)
        if i >= train:
            mask[6:8, 15:21, 10:16] = 1
            anatomy[mask > 0] = 900.0
        save_nifti(folder / f"{i}.nii.gz", *stored(anatomy, PLAIN, canonical_affine()))
        save_nifti(folder / f"mask{i}.nii.gz", *stored(mask, SAGITTAL, canonical_affine()), np.uint8)
        rows.append(
            f"{i}.nii.gz,{f'mask{i}.nii.gz' if i >= train else ''},s{i},{int(i >= train)},{'test' if i >= train else 'train'},"
        )
    return write_manifest(folder, *rows)


def test_a_row_becomes_its_slices(tmp_path: Path) -> None:
    cases = load_cases(volumes_and_masks(tmp_path))
    assert len(cases) == 5
    slices = expand_volumes(cases, DataConfig())
    chosen = read_nifti(tmp_path / "0.nii.gz").foreground_slices(0.1)
    assert [case.slice for case in slices if case.subject == "s0"] == chosen
    assert [case.name for case in slices][:2] == [f"0.nii.gz#{k}" for k in chosen[:2]]
    assert {case.slice for case in slices if case.label} == {6, 7}
    assert {case.subject for case in slices} == {f"s{i}" for i in range(5)}
    assert len(expand_volumes(cases, DataConfig(min_foreground=0.99))) < len(slices)
    assert len(fingerprint(slices)) == 32


def test_slices_are_named_by_their_place_in_the_file(tmp_path: Path) -> None:
    path = save_head(tmp_path / "a.nii", orientation=SAGITTAL)  # its slices run downwards
    volume = read_nifti(path)
    for case in expand_volumes(load_cases(write_manifest(tmp_path, "a.nii,,a,0,train,")), DataConfig()):
        assert case.slice is not None
        assert case.name == f"a.nii#{SHAPE[0] - 1 - case.slice}" == f"a.nii#{volume.native_index(case.slice)}"


def test_lesion_slices_are_not_learned_from(tmp_path: Path) -> None:
    volumes_and_masks(tmp_path)
    everything = expand_volumes(load_cases(write_manifest(tmp_path, "3.nii.gz,,a,0,train,")), DataConfig())
    healthy = expand_volumes(load_cases(write_manifest(tmp_path, "3.nii.gz,mask3.nii.gz,a,0,train,")), DataConfig())
    assert {case.slice for case in everything} - {case.slice for case in healthy} == {6, 7}


def test_masks_that_do_not_fit(tmp_path: Path) -> None:
    volumes_and_masks(tmp_path)
    save_nifti(tmp_path / "small.nii", *stored(np.zeros((13, 36, 28)), PLAIN, canonical_affine((13, 36, 28))))
    array, affine = stored(np.zeros(SHAPE), PLAIN, canonical_affine())
    affine[0, 3] += 2.0
    save_nifti(tmp_path / "moved.nii", array, affine)
    save(noise() > 99, tmp_path / "mask.png")
    for mask, expected in (
        ("small.nii", "has 28×36×13 voxels, its image 28×36×14"),
        ("moved.nii", r"lies elsewhere in space than its image 3.nii.gz"),
        ("mask.png", "the mask of a volume must be a volume"),
        ("", "an abnormal volume needs a mask"),
    ):
        cases = load_cases(write_manifest(tmp_path, f"3.nii.gz,{mask},a,1,test,"))
        with pytest.raises(UserError, match=expected):
            expand_volumes(cases, DataConfig())
        errors: list[str] = []
        assert expand_volumes(cases, DataConfig(), errors) == []
        assert len(errors) == 1


def test_a_packed_volume_is_unpacked_once_for_all_its_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def watched(path: Path) -> Volume:
        opened.append(path)
        return read_nifti(path)

    monkeypatch.setattr(read, "read_nifti", watched)
    slices = expand_volumes(load_cases(volumes_and_masks(tmp_path, train=9, test=0)), DataConfig())
    assert len(opened) == 9
    Source([], DataConfig(size=32), torch.device("cpu")).check(slices)
    assert len(opened) <= 9 + 9  # the first ones are no longer at hand
    assert len(read._volumes) <= read.MAX_OPEN


def test_train_calibrate_and_evaluate_on_volumes(run_cli: Cli, tmp_path: Path) -> None:
    manifest, run = volumes_and_masks(tmp_path / "data"), tmp_path / "run"
    assert run_cli("train", "--data", manifest, "--out", run, *BRIGHTNESS).code == 0
    assert run_cli("calibrate", run / "bundle", "--data", manifest).code == 0
    done = run_cli("evaluate", run / "bundle", "--data", manifest, "--out", tmp_path / "eval")
    assert done.code == 0, done
    metrics = json.loads((tmp_path / "eval" / "metrics.json").read_text())
    assert metrics["n"]["abnormal"] == 4
    assert metrics["n"]["subjects"] == 2
    assert metrics["pixel"]["ap"] > 0.8  # the lesion is the brightest there is
    rows = [json.loads(line) for line in (tmp_path / "eval" / "cases.jsonl").read_text().splitlines()]
    assert {row["input"] for row in rows if row["label"]} == {f"{i}.nii.gz#{k}" for i in (3, 4) for k in (6, 7)}
    (tmp_path / "data" / "4.nii.gz").write_bytes(b"no scan")
    done = run_cli("evaluate", run / "bundle", "--data", manifest, "--out", tmp_path / "eval2")
    assert done.code == 3
    assert "4.nii.gz: not a NIfTI file" in done.err
    refused(
        run_cli(
            "train", "--data", write_manifest(tmp_path / "data", "4.nii.gz,,a,0,train,"), "--out", tmp_path / "no", *BRIGHTNESS
        ),
        "4.nii.gz",
    )


def test_ignored_pixels_change_no_figure(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    """Bright rubbish in the ignored region, in normal and abnormal images, must leave every pixel figure as it was."""
    header = "image,mask,subject,label,split,note,ignore"
    figures = []
    for name, rubbish in (("a", 255), ("b", 0)):
        rows, folder = [], tmp_path / name
        for i in range(6):
            pixels, ignore = noise(i, 32, 32), np.zeros((32, 32), dtype=bool)
            ignore[:, 20:] = True
            pixels[ignore] = rubbish
            save(pixels, folder / f"{i}.png")
            save(ignore, folder / f"ignore{i}.png")
            if i >= 3:
                lesion = np.zeros((32, 32), dtype=bool)
                lesion[4:9, 5 : 25 if rubbish else 20] = True  # what lies in the ignored region is no lesion
                save(lesion, folder / f"mask{i}.png")
            rows.append(f"{i}.png,{f'mask{i}.png' if i >= 3 else ''},s{i},{int(i >= 3)},test,,ignore{i}.png")
        manifest = write_manifest(folder, *rows, header=header)
        assert run_cli("evaluate", tiny_bundle, "--data", manifest, "--out", tmp_path / f"out{name}").code == 0
        metrics = json.loads((tmp_path / f"out{name}" / "metrics.json").read_text())
        figures.append((metrics["pixel"], metrics["lesions"], metrics["n"], metrics["intervals"]["pixel"]))
        cases = [json.loads(line) for line in (tmp_path / f"out{name}" / "cases.jsonl").read_text().splitlines()]
        assert {case["lesion_pixels"] for case in cases} == {None, 5 * 15}
    assert figures[0] == figures[1]
    assert figures[0][2]["pixels"] == 6 * 32 * 20


def test_an_ignore_mask_must_be_there(tmp_path: Path) -> None:
    save(noise(), tmp_path / "a.png")
    with pytest.raises(UserError, match=r"no.png does not exist"):
        load_cases(write_manifest(tmp_path, "a.png,no.png", header="image,ignore"))
