"""What several tests need: small images, running the command line, and checking refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from forked import Forked
from numpy.typing import NDArray
from PIL import Image

TINY_DMD: dict[str, Any] = {  # all of the method, in a second
    "method": "dmd",
    "data": {"size": 32, "holdout": 0.25},
    "train": {"batch": 8, "log_every": 5},
    "calibrate": {"features": "off"},  # a network of its own, and slower than all the rest
    "model": {
        "stage1_epochs": 3, "stage2_epochs": 3, "widths": [8, 16], "d_z": 8, "codes": 16, "unet_widths": [16, 32],
        "classifier_widths": [8, 8, 8], "classifier_hidden": 8, "restart_after": 3,
    },
}  # fmt: skip
BRIGHTNESS = ("--method", "brightness", "--set", "data.size=32", "--set", "calibrate.features=off")  # trains in no time
COLUMNS = "image,mask,subject,label,split,note"


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Outcome]


def noise(seed: int = 0, height: int = 24, width: int = 32) -> NDArray[np.uint8]:
    """A grey image that depends on the seed."""
    return np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)


def save(pixels: NDArray[Any], path: Path, **options: Any) -> Path:
    """Write an image, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def save_many(folder: Path, count: int = 12, height: int = 24, width: int = 32) -> Path:
    """Write ``count`` different images."""
    for i in range(count):
        save(noise(i, height, width), folder / f"{i:03d}.png")
    return folder


def write_manifest(folder: Path, *rows: str, header: str = COLUMNS) -> Path:
    """Write the lines as they are given."""
    path = folder / "manifest.csv"
    path.write_text("".join(f"{row}\n" for row in (header, *rows)), encoding="utf-8")
    return path


def labelled(folder: Path, normal: int = 4, abnormal: int = 4) -> Path:
    """A test split: normal images, and abnormal ones with a mask each."""
    rows = []
    for i in range(normal + abnormal):
        save(noise(i), folder / "images" / f"{i}.png")
        mask = ""
        if i >= normal:
            mask = f"masks/{i}.png"
            save(noise(i) > 200, folder / mask)
        rows.append(f"images/{i}.png,{mask},s{i},{int(i >= normal)},test,")
    return write_manifest(folder, *rows)


def refused(outcome: Outcome, *words: object) -> str:
    """Check that a command ended in one line on stderr that holds every one of ``words``; return the line."""
    lines = [line for line in outcome.err.splitlines() if not line.startswith(("warning: ", "note: "))]
    assert outcome.code == 2, outcome
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("reshift: ")
    for word in words:
        assert str(word) in lines[0]
    return lines[0]


def read_records(out: Path) -> list[dict[str, Any]]:
    """``scores.jsonl`` without what differs between two equal runs."""
    records: list[dict[str, Any]] = [json.loads(line) for line in (out / "scores.jsonl").read_text().splitlines()]
    for record in records:
        record.pop("seconds")
    return records


def assert_nothing_half_written(folder: Path) -> None:
    """Check that every file below ``folder`` is whole, and that no temporary one is left."""
    for path in folder.rglob("*"):
        assert not path.name.startswith(".") or path.name == ".lock", path
        if path.suffix == ".json":
            json.loads(path.read_text())
        if path.suffix == ".jsonl":
            assert path.read_text() == "" or path.read_text().endswith("\n")
            for line in path.read_text().splitlines():
                json.loads(line)
        if path.suffix == ".npy":
            np.load(path)


def start(*args: object, prelude: str = "") -> Forked:
    """Start ``reshift ARGS`` as another process, which runs ``prelude`` first.

    Tests started in the background of a shell inherit that Ctrl-C is ignored; a user's terminal does not do that.
    """
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    return Forked(f"{heed}\n{prelude}\nfrom reshift.cli.app import main; main()", [str(a) for a in args])


def run_process(*args: object, largest_file: int | None = None) -> Outcome:
    """Run ``reshift ARGS`` as another process; files beyond ``largest_file`` bytes fail there as they do on a full disk."""
    limit = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({largest_file}, {largest_file}))" if largest_file else ""
    )
    process = start(*args, prelude=limit)
    out, err = process.communicate()
    return Outcome(int(process.returncode or 0), out, err)
