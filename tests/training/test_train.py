"""The training loop: exact resume after SIGKILL, two ranks like one, seeds, streaming, divergence, signals."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TINY_DMD, Cli
from safetensors.torch import load_file

from reshift.config import Config, DataConfig
from reshift.data.manifest import load_cases
from reshift.data.phantom import write_phantom
from reshift.data.source import Source
from reshift.errors import UserError
from reshift.inference.bundle import build
from reshift.kernels.graphs import Recorder
from reshift.system.device import Rank
from reshift.system.lock import locked
from reshift.training.loop import batch_size, fit
from reshift.training.run import resolve, train_run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_phantom(tmp_path_factory.mktemp("phantom"), train=32, test_normal=2, test_abnormal=2, size=32, slices=2)


def config(**changes: Any) -> Config:
    return resolve("dmd", "quick", [TINY_DMD, changes])


@pytest.fixture(scope="module")
def trained(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of ``config()``; read only."""
    run = tmp_path_factory.mktemp("trained")
    train_run(config(), manifest, run)
    return run


def toml(folder: Path) -> Path:
    path = folder / "tiny.toml"
    tables = {table: values for table, values in TINY_DMD.items() if isinstance(values, dict)}
    lines = [f'method = "{TINY_DMD["method"]}"\n']
    lines += [f"[{table}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in values.items()) for table, values in tables.items()]
    path.write_text("\n".join(lines))
    return path


def arguments(manifest: Path, out: Path, folder: Path, *extra: str) -> list[str]:
    base = ["train", "--data", str(manifest), "--out", str(out), "--profile", "quick", "--config", str(toml(folder))]
    return [*base, "--device", "cpu", *extra]


def command(*given: Any) -> list[str]:
    return [sys.executable, "-m", "reshift", *arguments(*given)]


def weights(run: Path) -> bytes:
    return (run / "bundle" / "model.safetensors").read_bytes()


def test_same_seed_same_bits_other_seed_other_bits(manifest: Path, trained: Path, tmp_path: Path) -> None:
    for name, seed in (("same", 0), ("other", 1)):
        train_run(config(seed=seed), manifest, tmp_path / name)
    assert weights(trained) == weights(tmp_path / "same")
    assert weights(trained) != weights(tmp_path / "other")


def test_killed_at_any_moment_and_resumed_the_weights_are_the_same_to_the_bit(
    run_cli: Cli, manifest: Path, tmp_path: Path
) -> None:
    # A checkpoint after every step: more places to be killed in; and enough steps that the last kill does not come too late.
    epochs = ("--set", "model.stage1_epochs=10", "--set", "model.stage2_epochs=10")
    slow = ("--set", "train.checkpoint_seconds=0", *epochs)
    assert run_cli(*arguments(manifest, tmp_path / "whole", tmp_path, *slow)).code == 0
    run = tmp_path / "killed"
    kills, resume = 0, tuple[str, ...]()
    for delay in (0.0, 0.1, 0.2):
        process = subprocess.Popen(command(manifest, run, tmp_path, *slow, *resume), stderr=subprocess.PIPE)
        before = _last_step(run)
        while process.poll() is None and _last_step(run) == before:
            time.sleep(0.01)
        time.sleep(delay)  # somewhere inside a step, a checkpoint or a log line
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
        resume = ("--resume",)
    assert kills >= 2, "the run ended before it could be killed"
    assert run_cli(*arguments(manifest, run, tmp_path, *slow, "--resume")).code == 0
    assert weights(run) == weights(tmp_path / "whole")
    steps = [[(r["stage"], r["step"], r["loss"]) for r in _records(folder)] for folder in (run, tmp_path / "whole")]
    assert steps[0] == steps[1]  # the log, too, reads as if nothing had happened
    assert not list(run.glob(".*tmp"))


def _records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def _last_step(run: Path) -> str:
    path = run / "log.jsonl"
    return path.read_text()[-200:] if path.exists() else ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_what_resume_takes_up(
    run_cli: Cli, manifest: Path, trained: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen(command(manifest, run, tmp_path), stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not _last_step(run):
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate()
    last = err.strip().splitlines()[-1]
    assert process.returncode == 130
    assert "--resume" in last
    assert "Traceback" not in err
    assert (run / "checkpoint.safetensors").exists()
    assert run_cli(*arguments(manifest, run, tmp_path, "--resume")).code == 0
    assert weights(run) == weights(trained)


def test_two_processes_give_what_one_gives(run_cli: Cli, manifest: Path, tmp_path: Path) -> None:
    """Same global batch, gloo: BatchNorm statistics, random draws and gradients all span both ranks."""
    one = ("--set", "train.lr=1e-4")
    assert run_cli(*arguments(manifest, tmp_path / "one", tmp_path, *one)).code == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    both = [*torchrun, *command(manifest, tmp_path / "two", tmp_path, *one)[1:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(both, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    a, b = (load_file(tmp_path / name / "bundle" / "model.safetensors") for name in ("one", "two"))
    assert a.keys() == b.keys()
    for name in a:
        assert torch.allclose(a[name].float(), b[name].float(), atol=2e-4, rtol=2e-3), name
    losses = [[r["loss"] for r in _records(tmp_path / name)] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


LATE = """
import os, time
from pathlib import Path
from reshift.methods.trivial import Brightness

class Late(Brightness):
    def __init__(self, *given):
        super().__init__(*given)
        if os.environ["RANK"] == "1":
            while not Path("run", ".lock").exists():
                time.sleep(0.01)
            time.sleep(1.0)  # by then the first would have written its claim, if it did not wait
"""


def test_a_process_that_comes_late_may_still_join(manifest: Path, tmp_path: Path) -> None:
    """The first claims the folder; the second must not take it for another run's."""
    (tmp_path / "late.py").write_text(LATE)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "reshift", "train"]
    given = ["--data", str(manifest), "--out", str(tmp_path / "run"), "--method", "late:Late", "--set", "data.size=32"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run([*torchrun, *given], capture_output=True, text=True, env=environment, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "run" / "bundle" / "config.json").exists()


def test_all_ranks_end_where_another_run_holds_the_folder(manifest: Path, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "reshift", "train"]
    given = ["--data", str(manifest), "--out", str(tmp_path), "--method", "brightness", "--set", "data.size=32"]
    with locked(tmp_path):
        done = subprocess.run([*torchrun, *given], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode != 0
    assert done.stderr.count("is writing there; wait until it ends") == 1
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_streaming_gives_the_same_weights_as_memory(manifest: Path, trained: Path, tmp_path: Path) -> None:
    train_run(config(data={"memory_gb": 1e-6}), manifest, tmp_path / "stream")
    assert weights(trained) == weights(tmp_path / "stream")


def test_source_streams_what_it_would_hold(manifest: Path) -> None:
    cases = load_cases(manifest)
    held = Source(cases, DataConfig(size=32), CPU)
    streamed = Source(cases, DataConfig(size=32, memory_gb=1e-6), CPU)
    assert held.resident
    assert not streamed.resident
    assert torch.equal(held.batch([3, 1]), streamed.batch([3, 1]))
    asked = [[3, 1], [2], [0, 0, 4]]
    for mine, theirs in zip(held.stream(asked), streamed.stream(asked), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(torch.cat(list(held.batches())), torch.cat(list(streamed.batches())))


def test_every_image_is_seen_equally_often(manifest: Path, tmp_path: Path) -> None:
    seen: list[int] = []

    class Watched(Source):
        def stream(self, chosen: Iterable[Sequence[int]]) -> Iterator[torch.Tensor]:
            asked = list(chosen)
            seen.extend(i for indices in asked for i in indices)
            return super().stream(asked)

    cases = [case for case in load_cases(manifest) if case.split == "train"][:20]  # 20 images, batches of 8: no even division
    plain = config(model={"stage1_epochs": 10, "stage2_epochs": 0})
    fit(build(plain), Watched(cases, plain.data, CPU), plain, tmp_path, Rank(0, 1))
    counts = [seen.count(i) for i in range(20)]
    assert len(seen) == 10 * 3 * 8
    assert max(counts) - min(counts) <= 1


def test_divergence_is_one_line(manifest: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"diverged.*train\.lr"):
        train_run(config(train={"lr": 1e30, "clip": 0.0}), manifest, tmp_path / "run")


def test_log_says_what_the_codes_and_the_classifier_do(trained: Path) -> None:
    by_stage = {record["stage"]: record for record in _records(trained)}
    assert {"loss", "code_usage", "code_perplexity", "gradient", "lr", "seconds"} <= by_stage["autoencoder"].keys()
    assert {"loss", "diffusion", "classification", "accuracy", "latent_peak"} <= by_stage["restoration"].keys()


def test_tensorboard_writes_events(manifest: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="extra 'log' is not installed")
    short = {"stage1_epochs": 1, "stage2_epochs": 1}
    train_run(config(train={"tensorboard": True, "log_every": 1}, model=short), manifest, tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))


def test_bf16_on_the_cpu_trains(manifest: Path, tmp_path: Path) -> None:
    train_run(config(train={"amp": "bf16"}, model={"stage1_epochs": 1, "stage2_epochs": 1}), manifest, tmp_path / "run")
    assert weights(tmp_path / "run")


def test_batches_are_shared_equally_or_refused() -> None:
    assert batch_size(22, 100, 1) == 22
    assert batch_size(22, 10, 1) == 10
    assert batch_size(22, 11, 2) == 10
    with pytest.raises(UserError, match="multiple of 4"):
        batch_size(22, 100, 4)


def test_recorder_off_the_gpu_only_calls() -> None:
    recorder = Recorder(torch.Generator(), enabled=True)
    calls: list[float] = []

    def work(x: torch.Tensor) -> dict[str, torch.Tensor]:
        calls.append(float(x))
        return {"y": x * 2}

    assert [float(recorder("k", work, torch.tensor(float(i)))["y"]) for i in range(6)] == [0, 2, 4, 6, 8, 10]
    assert len(calls) == 6


def test_hold_out_keeps_subjects_apart(trained: Path) -> None:
    bundle = trained / "bundle"
    facts = json.loads((bundle / "config.json").read_text())["training"]
    calibration = json.loads((bundle / "calibration.json").read_text())
    assert (facts["images"], facts["held_out_images"]) == (24, 8)
    assert calibration["held_out"]["images"] == 8
    assert calibration["training"]["images"] == 24
