"""The command ``prepare``: prepare → train → evaluate, damaged sources, interrupted runs and full disks."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dataset_trees as trees
import nibabel
import numpy as np
import pytest
from helpers import Cli, refused, run_process, start
from numpy.typing import NDArray
from PIL import Image

from reshift.data.manifest import load_cases

SIZE = 32
TINY_AE = (
    "--method", "ae", "--set", "data.size=32", "--set", "model.epochs=1", "--set", "model.width=2", "--set", "model.hidden=8",
    "--set", "train.batch=4", "--set", "calibrate.features=off",
)  # fmt: skip
FOLDER = "RSNA_ASNR_MICCAI_BraTS2021_TrainingData_16July2021"


def brats_file(source: Path, case: int, kind: str) -> Path:
    name = f"BraTS2021_{case:05d}"
    return source / FOLDER / name / f"{name}_{kind}.nii.gz"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five good cases; copy it before damaging it."""
    return trees.brats(tmp_path_factory.mktemp("brats"), cases=5)


@pytest.fixture
def source(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "source"))


@pytest.mark.parametrize(
    ("dataset", "tree"),
    [
        ("brats2021", trees.brats),
        ("ixi-atlas", lambda root: trees.atlas(trees.ixi(root))),
        ("busi", lambda root: trees.busi(root, normals=20)),
        ("vindr", trees.vindr),
    ],
)
def test_prepare_train_evaluate(run_cli: Cli, tmp_path: Path, dataset: str, tree: Callable[[Path], Path]) -> None:
    source, data, run, result = (tmp_path / name for name in ("source", "data", "run", "evaluation"))
    tree(source)
    assert run_cli("prepare", dataset, "--source", source, "--out", data, "--size", SIZE).code == 0
    assert run_cli("train", "--data", data, "--out", run, *TINY_AE).code == 0
    assert run_cli("evaluate", run / "bundle", "--data", data, "--out", result).code == 0
    metrics = json.loads((result / "metrics.json").read_text())
    tests = [case for case in load_cases(data) if case.split == "test"]
    assert metrics["n"]["normal"] + metrics["n"]["abnormal"] == len(tests)
    assert metrics["image"]["auc"] is not None
    assert metrics["pixel"]["ap"] is not None


def test_a_brats_model_on_wmh_ignores_other_pathology(run_cli: Cli, whole: Path, tmp_path: Path) -> None:
    flair, data, result = (tmp_path / name for name in ("flair", "data", "evaluation"))
    assert run_cli("prepare", "brats2021", "--source", whole, "--out", flair, "--size", SIZE).code == 0
    source = trees.wmh(tmp_path / "wmh", trees.WMH_TEST[:2])
    assert run_cli("prepare", "wmh", "--source", source, "--out", data, "--size", SIZE).code == 0
    assert run_cli("train", "--data", flair, "--out", tmp_path / "run", *TINY_AE).code == 0
    assert run_cli("evaluate", tmp_path / "run/bundle", "--data", data, "--out", result).code == 0
    cases = load_cases(data)
    ignored = sum(int(np.asarray(Image.open(case.ignore)).sum()) for case in cases if case.ignore)
    assert ignored > 0
    metrics = json.loads((result / "metrics.json").read_text())
    assert metrics["n"]["pixels"] == len(cases) * SIZE**2 - ignored


def damage_missing(source: Path) -> str:
    brats_file(source, 1, "seg").unlink()
    return f"{FOLDER}/BraTS2021_00001/BraTS2021_00001_flair.nii.gz: has no segmentation"


def damage_truncated(source: Path) -> str:
    path = brats_file(source, 1, "flair")
    path.write_bytes(path.read_bytes()[:4000])
    return "BraTS2021_00001_flair.nii.gz"


def damage_orphan(source: Path) -> str:
    brats_file(source, 1, "flair").unlink()
    return "BraTS2021_00001_seg.nii.gz: a segmentation without its FLAIR"


def rewrite_seg(source: Path, change: Callable[[NDArray[Any]], NDArray[Any]], shift: float = 0.0) -> None:
    image: Any = nibabel.load(brats_file(source, 1, "seg"))
    affine = image.affine.copy()
    affine[0, 3] += shift
    nibabel.save(nibabel.Nifti1Image(change(np.asarray(image.dataobj)), affine), brats_file(source, 1, "seg"))


def damage_shape(source: Path) -> str:
    rewrite_seg(source, lambda labels: labels[:-2])
    return "they must be the same grid"


def damage_label(source: Path) -> str:
    rewrite_seg(source, lambda labels: np.where(labels == 4, 3, labels))
    return "holds label 3; known are 0, 1, 2, 4"


def damage_interpolated(source: Path) -> str:
    rewrite_seg(source, lambda labels: labels.astype(np.float32) * 0.7)
    return "holds values between labels"


def damage_position(source: Path) -> str:
    rewrite_seg(source, lambda labels: labels, shift=40.0)
    return "is 40 mm away from its image"


@pytest.mark.parametrize(
    "damage",
    [damage_missing, damage_truncated, damage_orphan, damage_shape, damage_label, damage_interpolated, damage_position],
    ids=lambda damage: damage.__name__,
)
def test_a_bad_case_is_named_and_the_others_are_prepared(
    run_cli: Cli, source: Path, tmp_path: Path, damage: Callable[[Path], str]
) -> None:
    wanted = damage(source)
    done = run_cli("prepare", "brats2021", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    assert "Traceback" not in done.err
    [line] = [line for line in done.err.splitlines() if line.startswith("skipped: ")]
    assert wanted in line
    assert str(tmp_path) not in line
    assert "warning: 1 cases could not be used" in done.err
    facts = json.loads((tmp_path / "out/dataset.json").read_text())
    assert facts["skipped"] == [line.removeprefix("skipped: ")]
    subjects = {case.subject for case in load_cases(tmp_path / "out")}
    assert "BraTS2021_00001" not in subjects
    assert len(subjects) == 4


def test_a_repaired_case_is_prepared_by_the_next_run(run_cli: Cli, whole: Path, source: Path, tmp_path: Path) -> None:
    damage_truncated(source)
    command = ("prepare", "brats2021", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert run_cli(*command).code == 3
    shutil.copy(brats_file(whole, 1, "flair"), brats_file(source, 1, "flair"))
    assert run_cli(*command).code == 0
    assert run_cli("prepare", "brats2021", "--source", whole, "--out", tmp_path / "new", "--size", SIZE).code == 0
    for file in ("manifest.csv", "dataset.json"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "new" / file).read_bytes()


def test_nothing_usable_is_one_line(run_cli: Cli, source: Path, tmp_path: Path) -> None:
    for case in range(5):
        brats_file(source, case, "seg").unlink()
    done = run_cli("prepare", "brats2021", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    refused(done, "nothing could be prepared", "has no segmentation")


STOP = """
import reshift.datasets.build as build
real, seen = build.append_json, []
def stop(path, value):
    real(path, value)
    seen.append(value)
    if len(seen) == 3:
        raise KeyboardInterrupt
build.append_json = stop
"""


def test_an_interrupted_run_continues(run_cli: Cli, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("prepare", "brats2021", "--source", whole, "--out", out, "--size", SIZE)
    process = start(*command, prelude=STOP)
    assert process.communicate(timeout=120)
    assert process.returncode == 130
    with (out / "subjects.jsonl").open("a") as log:
        log.write('{"key": "BraTS2021_0000')  # as after a power cut
    before = {path: path.stat().st_mtime_ns for path in (out / "images").iterdir()}
    finished = [json.loads(line) for line in (out / "subjects.jsonl").read_text().splitlines()[1:-1]]
    kept = {out / row["image"] for record in finished for row in record["rows"]}
    assert kept
    assert run_cli(*command).code == 0
    assert run_cli(*command).code == 0
    assert all(path.stat().st_mtime_ns == before[path] for path in kept), "a finished case was prepared again"
    assert run_cli("prepare", "brats2021", "--source", whole, "--out", tmp_path / "new", "--size", SIZE).code == 0
    for file in ("manifest.csv", "dataset.json"):
        assert (out / file).read_bytes() == (tmp_path / "new" / file).read_bytes()


def test_a_full_disk_is_one_line_and_leaves_no_manifest(whole: Path, tmp_path: Path) -> None:
    command = ("prepare", "brats2021", "--source", whole, "--out", tmp_path / "out", "--size", SIZE)
    done = run_process(*command, largest_file=300)
    refused(done, "could not be written")
    assert not (tmp_path / "out/manifest.csv").exists()


def test_a_wrong_source_is_refused_and_the_expected_files_are_named(run_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    expected = {
        "brats2021": "BraTS2021_00000_flair.nii.gz", "ixi": "IXI002-Guys-0828-T1.nii.gz", "atlas": "T1lesion_mask.nii.gz",
        "wmh": "wmh.nii.gz", "busi": "benign (1)_mask.png", "vindr": "train.csv", "ixi-atlas": "IXI002-Guys-0828-T1.nii.gz",
    }  # fmt: skip
    for name, file in expected.items():
        refused(run_cli("prepare", name, "--source", tmp_path / "empty", "--out", tmp_path / "out"), "looked for", file)
    (tmp_path / "empty/ATLAS.7z").write_bytes(b"")
    refused(run_cli("prepare", "atlas", "--source", tmp_path / "empty", "--out", tmp_path / "out"), "unpack ATLAS.7z first")


def test_mistakes_are_one_line(run_cli: Cli, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def run(name: str = "brats2021", source: Path = whole, folder: Path = out, *more: object) -> str:
        return refused(run_cli("prepare", name, "--source", source, "--out", folder, "--size", SIZE, *more))

    assert "did you mean 'busi'" in run("bussi")
    assert "no such folder" in run(source=tmp_path / "nowhere")
    assert "choose subjects" in run("brats2021", whole, out, "--protocol", "slices")
    assert "choose crop or pad" in run("brats2021", whole, out, "--fit", "stretch")
    assert "inside the source" in run(folder=whole / "out")
    out.mkdir()
    (out / "manifest.csv").write_text("image\n")
    assert "did not write" in run()


def test_another_run_with_other_settings_is_refused(run_cli: Cli, whole: Path, tmp_path: Path) -> None:
    command = ("prepare", "brats2021", "--source", whole, "--out", tmp_path / "out")
    assert run_cli(*command, "--size", SIZE).code == 0
    before = (tmp_path / "out/manifest.csv").read_bytes()
    refused(run_cli(*command, "--size", 64), "other settings (size 32)")
    refused(run_cli(*command, "--size", SIZE, "--seed", 4), "seed 0")
    log = tmp_path / "out/subjects.jsonl"
    log.write_text(log.read_text().replace("{", "", 1))
    refused(run_cli(*command, "--size", SIZE), log, "damaged")
    assert (tmp_path / "out/manifest.csv").read_bytes() == before


def test_two_visits_of_a_stroke_patient_stay_together(run_cli: Cli, tmp_path: Path) -> None:
    source = trees.atlas(tmp_path / "source")
    for path in sorted(source.rglob("sub-r001s000*.nii.gz")):  # without lesion in slice 95; its second visit has one
        twin = next(source.rglob(path.name.replace("r001s000", "r002s001")))
        second = Path(str(path).replace("ses-1", "ses-2"))
        second.parent.mkdir(parents=True, exist_ok=True)
        second.write_bytes(twin.read_bytes())
    for seed in range(4):
        done = run_cli("prepare", "atlas", "--source", source, "--out", tmp_path / f"{seed}", "--size", SIZE, "--seed", seed)
        assert done.code == 0, done.err
        cases = [case for case in load_cases(tmp_path / f"{seed}") if case.subject == "r001s000"]
        assert [(case.label, case.split) for case in cases] == [(0, "test"), (1, "test")]


def test_vindr_uses_the_list_in_the_source(run_cli: Cli, tmp_path: Path) -> None:
    source = trees.vindr(tmp_path / "source")
    lists = {"train": {"0": [0, 1, 2]}, "test": {"0": [3], "1": [10, 99]}}
    named = {s: {k: [f"{trees.image_id(i)}.png" for i in v] for k, v in part.items()} for s, part in lists.items()}
    (source / "data.json").write_text(json.dumps(named))
    done = run_cli("prepare", "vindr", "--source", source, "--out", tmp_path / "out", "--size", SIZE)
    assert done.code == 3
    assert f"skipped: {trees.image_id(99)}: train/ has no such DICOM" in done.err
    cases = load_cases(tmp_path / "out")
    assert sorted((case.split, case.label) for case in cases) == [("test", 0), ("test", 1), *[("train", 0)] * 3]
