"""What a user can get wrong, through the command line: one line that names it, exit 2, and nothing half-written."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import (
    BRIGHTNESS,
    COLUMNS,
    Cli,
    assert_nothing_half_written,
    labelled,
    noise,
    read_records,
    refused,
    run_process,
    save,
    save_many,
    write_manifest,
)

# ---- training data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("damaged.png", b"no picture at all", "not a PNG, JPEG or TIFF"),
        ("empty.tif", b"", "0 bytes"),
        ("flat.png", np.full((20, 20), 3, dtype=np.uint8), "every pixel has the value 3"),
        ("tiny.png", noise(0, 3, 3), "3×3 pixels is too small"),
        ("hole.tif", np.where(noise() > 250, np.nan, noise()).astype(np.float32), "NaN or infinite"),
    ],
)
@pytest.mark.parametrize("holdout", ["0.0", "0.9"])  # the picture is learned from, or kept for calibration
@pytest.mark.parametrize("memory", ["4", "1e-9"])  # pictures stay in memory, or are streamed
def test_a_bad_picture_stops_training_before_it_begins(
    run_cli: Cli, tmp_path: Path, name: str, content: object, expected: str, holdout: str, memory: str
) -> None:
    path = save_many(tmp_path / "in", 40) / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, np.ndarray):
        save(content, path)
    out, sets = tmp_path / "run", ("--set", f"data.holdout={holdout}", "--set", f"data.memory_gb={memory}")
    train = ("train", "--data", tmp_path / "in", "--out", out, *BRIGHTNESS, *sets)
    refused(run_cli(*train), path, expected)
    assert not [path for path in out.iterdir() if path.name != ".lock"]
    path.unlink()
    assert run_cli(*train).code == 0  # mended: the same command works


def test_too_little_to_train_on(run_cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (tmp_path / "empty").mkdir()
    one = save(noise(), tmp_path / "one" / "a.png").parent
    for data, expected in (
        (tmp_path / "empty", "no PNG, JPEG, TIFF, NIfTI or DICOM images"),
        (one, "at least 8"),
        (tmp_path / "no", "no such"),
    ):
        refused(run_cli("train", "--data", data, "--out", out, *BRIGHTNESS), data, expected)
    few = save_many(tmp_path / "few", 10)
    holdout = ("--set", "data.holdout=0.9")
    refused(run_cli("train", "--data", few, "--out", out, *BRIGHTNESS, *holdout), few, "lower data.holdout")
    assert not out.exists()


def test_a_manifest_mistake_reaches_the_user(run_cli: Cli, tmp_path: Path) -> None:
    save_many(tmp_path / "images", 10)
    rows = [f"images/{i:03d}.png,,s{i},0,train," for i in range(9)]
    for bad, expected in (("images/009.png,,s0,1,test,", "leaks"), ("images/x.png,,x,0,train,", "x.png does not exist")):
        path = write_manifest(tmp_path, *rows, bad)
        refused(run_cli("train", "--data", path, "--out", tmp_path / "run", *BRIGHTNESS), path, expected)
    path = write_manifest(tmp_path, *rows, header=COLUMNS.replace("subject", "subjct"))
    refused(run_cli("train", "--data", path, "--out", tmp_path / "run", *BRIGHTNESS), path, "did you mean 'subject'?")
    assert not (tmp_path / "run").exists()


def test_mixed_sizes_and_depths_train(run_cli: Cli, tmp_path: Path) -> None:
    for i in range(5):
        save(noise(i, 20 + i, 50 - 3 * i), tmp_path / "in" / f"{i}.png")
        save(noise(i, 30, 30).astype(np.uint16) * 200, tmp_path / "in" / f"{i}.tif")
    assert run_cli("train", "--data", tmp_path / "in", "--out", tmp_path / "run", *BRIGHTNESS).code == 0


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "train.lrr=1"], "unknown setting 'train.lrr'; did you mean 'train.lr'?"),
        (["--set", "trian.lr=1"], "unknown setting 'trian'; did you mean 'train'?"),
        (["--set", "model.step=1"], "unknown setting 'model.step'; did you mean 'model.steps'?"),
        (["--set", "train.lr=fast"], "setting 'train.lr' = 'fast'"),
        (["--set", "train.lr"], "--set train.lr: write it as key=value"),
        (["--set", "data=7"], "setting 'data' = 7"),
        (["--set", "data.size=100"], "data.size 100 is not a multiple"),
        (["--set", "calibrate.reference=all"], "'held-out' or 'training'"),
        (["--method", "brigthness"], "unknown method 'brigthness'; did you mean 'brightness'?"),
        (["--profile", "fast"], "unknown profile 'fast'; known: paper, quick"),
        (["--seed", "-1"], "setting 'seed' = -1"),
        (["--seed", str(2**70)], "setting 'seed'"),
        (["--seed", "one"], "--seed"),
        (["--device", "gpu0"], "'gpu0' is not one we run on"),
        (["--config", "no.toml"], "no.toml: no such config file"),
        (["--lr", "1"], "--lr"),
    ],
)
def test_wrong_settings(run_cli: Cli, folder_of_images: Path, tmp_path: Path, arguments: list[str], expected: str) -> None:
    refused(run_cli("train", "--data", folder_of_images, "--out", tmp_path / "run", *arguments), expected)
    assert not (tmp_path / "run").exists()


def test_wrong_settings_in_a_file(run_cli: Cli, folder_of_images: Path, tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    train = ("train", "--data", folder_of_images, "--out", tmp_path / "run", "--config", path)
    for text, expected in (("[train]\nbatchs = 4\n", "did you mean 'train.batch'?"), ("[train\n", f"{path}: not valid TOML")):
        path.write_text(text)
        refused(run_cli(*train), expected)


def test_no_gpu(run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    train = ("train", "--data", folder_of_images, "--out", tmp_path / "run", "--device", "cuda")
    refused(run_cli(*train), "has 0 usable GPUs; use auto or cpu")
    refused(run_cli("score", tiny_bundle, folder_of_images, "--out", tmp_path / "s", "--device", "cuda:1"), "has 0 usable GPUs")


def test_missing_arguments_are_one_line_too(run_cli: Cli) -> None:
    refused(run_cli("train", "--data", "x"), "out", "reshift train --help")
    refused(run_cli("trian"), "trian", "train")


def test_debug_shows_the_traceback_wherever_it_is_written(tmp_path: Path) -> None:
    plain = run_process("info", tmp_path)
    refused(plain, tmp_path, "config.json is missing")
    done = run_process("info", tmp_path, "--debug")
    assert done.code != 0
    assert "Traceback" in done.err
    assert "config.json is missing" in done.err


# ---- output folders --------------------------------------------------------------------------------------------------


def test_where_nothing_can_be_written(run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "below"
    refused(run_cli("train", "--data", folder_of_images, "--out", out, *BRIGHTNESS), out, "choose another")
    refused(run_cli("score", tiny_bundle, folder_of_images, "--out", out), out, "choose another")
    refused(run_cli("evaluate", tiny_bundle, "--data", labelled(tmp_path), "--out", tmp_path / "file"), "file", "choose another")


def test_a_folder_belongs_to_one_run(run_cli: Cli, folder_of_images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train = ("train", "--data", folder_of_images, "--out", out, *BRIGHTNESS)
    assert run_cli(*train).code == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    refused(run_cli(*train), out, "already holds a run; --resume")
    refused(run_cli(*train, "--resume", "--set", "calibrate.image_quantile=0.9"), out, "calibrate.image_quantile = 0.95, now 0.9")
    other = save_many(tmp_path / "other", 10)
    refused(run_cli("train", "--data", other, "--out", out, *BRIGHTNESS, "--resume"), out, "other data")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert run_cli(*train, "--resume").code == 0
    for damage in ("{", "[]", "{}"):
        (out / "run.json").write_text(damage)
        refused(run_cli(*train, "--resume"), out / "run.json", "damaged")


# ---- scoring and evaluating ------------------------------------------------------------------------------------------


def test_inputs_that_are_not_there(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(run_cli("score", tiny_bundle, tmp_path / "no.png", "--out", tmp_path / "s"), tmp_path / "no.png", "no such file")
    refused(run_cli("score", tiny_bundle, tmp_path / "empty", "--out", tmp_path / "s"), tmp_path / "empty", "no PNG")
    assert not (tmp_path / "s").exists()


def test_evaluating_needs_labels(run_cli: Cli, tiny_bundle: Path, folder_of_images: Path, tmp_path: Path) -> None:
    evaluate = ("evaluate", tiny_bundle, "--out", tmp_path / "e", "--data")
    refused(run_cli(*evaluate, folder_of_images), folder_of_images, "no test images", "split 'test'")
    assert not (tmp_path / "e").exists()
    done = run_cli(*evaluate, labelled(tmp_path / "normal", abnormal=0))
    assert "no abnormal test images" in done.err
    metrics = json.loads((tmp_path / "e" / "metrics.json").read_text())
    assert (metrics["image"]["auc"], metrics["pixel"]["ap"], metrics["n"]) == (
        None,
        None,
        {"normal": 4, "abnormal": 0, "subjects": 4, "pixels": 0},
    )


def test_a_bad_test_image_is_left_out_and_told(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    manifest, out = labelled(tmp_path), tmp_path / "e"
    save(noise(0, 24, 30) > 99, tmp_path / "masks" / "5.png")  # its image is 32 wide
    (tmp_path / "images" / "6.png").write_bytes(b"damaged")
    done = run_cli("evaluate", tiny_bundle, "--data", manifest, "--out", out)
    assert done.code == 3
    assert f"{tmp_path / 'masks' / '5.png'}: mask is 30×24 pixels, its image 32×24" in done.err
    assert f"{tmp_path / 'images' / '6.png'}: not a PNG" in done.err
    assert json.loads((out / "metrics.json").read_text())["n"]["abnormal"] == 2
    assert_nothing_half_written(out)


def test_nothing_left_to_evaluate(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    manifest = labelled(tmp_path, normal=2, abnormal=0)
    for path in (tmp_path / "images").iterdir():
        path.write_bytes(b"damaged")
    done = run_cli("evaluate", tiny_bundle, "--data", manifest, "--out", tmp_path / "e")
    assert "none of the 2 test images" in done.err.splitlines()[-1]
    assert (done.code, [path for path in (tmp_path / "e").iterdir() if path.name != ".lock"]) == (2, [])


def test_scores_that_are_no_numbers(run_cli: Cli, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reshift.inference.model import Model

    real = Model.launch
    monkeypatch.setattr(
        Model, "launch", lambda self, pixels, _=None: lambda: ([float("nan")] * len(pixels), real(self, pixels)()[1])
    )
    manifest = labelled(tmp_path)
    assert run_cli("score", tiny_bundle, manifest, "--out", tmp_path / "s").code == 3
    assert all("diverged" in record["error"] for record in read_records(tmp_path / "s"))
    done = run_cli("evaluate", tiny_bundle, "--data", manifest, "--out", tmp_path / "e")
    assert (done.code, "diverged" in done.err) == (2, True)


def test_evaluating_and_scoring_share_a_folder(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    manifest, out = labelled(tmp_path), tmp_path / "o"
    for _ in range(2):
        assert run_cli("score", tiny_bundle, manifest, "--out", out).code == 0
        assert run_cli("evaluate", tiny_bundle, "--data", manifest, "--out", out).code == 0
    assert len(read_records(out)) == 8
