"""``python -m reshift.score_helper``: reads and writes pictures for a scoring process, which asks through a pipe.

Requests come on standard input, answers go to standard output (frames.py). It keeps what it has read until it writes it, and ends
when nobody is left to ask, whatever became of them.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.calibrate import Calibration
from reshift.config import DataConfig
from reshift.errors import UserError, reason
from reshift.frames import receive, send
from reshift.score_picture import Loaded, Seen, Task, load, write
from reshift.scores import Record


class Picture(NamedTuple):
    """What is to be read, and under which name its map is to be written."""

    path: Path
    stem: str


Outcome = NDArray[np.float32] | UserError | None  # network input, or what is wrong, or nothing: it is a volume


class Desk:
    """Pictures between reading and writing, by their stems."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.held: dict[str, Loaded] = {}

    def read(self, picture: Picture) -> Outcome:
        """One bad file is one bad record."""
        try:
            loaded = load(picture.path, self.task.data)
        except Exception as err:
            return UserError(reason(err))
        if loaded is None:
            return None
        self.held[picture.stem] = loaded
        return loaded.prepared.pixels

    def write(self, picture: Picture, seen: Seen) -> Record:
        """Write what the network says of it."""
        return write(self.task, *picture, self.held.pop(picture.stem), seen)


# ---- messages: what the asking process sends, and what it gets ---------------------------------------------------------


def send_task(pipe: BinaryIO, task: Task) -> None:
    """The first message."""
    calibration = None if task.calibration is None else task.calibration.model_dump_json()
    send(pipe, [task.data.model_dump_json(), str(task.out), calibration])


def ask_to_read(pipe: BinaryIO, pictures: Sequence[Picture]) -> None:
    """See ``Desk.read``."""
    send(pipe, ["read", [(str(path), stem) for path, stem in pictures]])


def ask_to_write(pipe: BinaryIO, items: Sequence[tuple[Picture, Seen]]) -> None:
    """See ``Desk.write``."""
    rows = [(str(picture.path), picture.stem, seen.score, seen.seconds, seen.features is not None) for picture, seen in items]
    maps, features = [seen.heatmap for _, seen in items], [seen.features for _, seen in items if seen.features is not None]
    send(pipe, ["write", rows], [*maps, *features])


def outcomes(pipe: BinaryIO) -> list[Outcome]:
    """The answer to ``ask_to_read``."""
    said, arrays = _answer(pipe)
    inputs = iter(arrays)
    return [next(inputs) if what is True else None if what is None else UserError(what) for what in said]


def records(pipe: BinaryIO) -> list[Record]:
    """The answer to ``ask_to_write``."""
    found: list[Record] = _answer(pipe)[0]
    return found


def _answer(pipe: BinaryIO) -> tuple[Any, list[NDArray[Any]]]:
    said, arrays = receive(pipe)
    if isinstance(said, str):
        raise UserError(said)
    return said, arrays


# ---- the process -------------------------------------------------------------------------------------------------------


def main() -> None:
    """Answer until the pipe ends."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not get among the answers
    try:
        (data, out, calibration), _ = receive(requests)
        known = None if calibration is None else Calibration.model_validate_json(calibration)
        desk = Desk(Task(DataConfig.model_validate_json(data), Path(out), known, dicom=False))
        while True:
            (what, rows), arrays = receive(requests)
            try:
                answer: tuple[Any, list[NDArray[Any]]] = _read(desk, rows) if what == "read" else _write(desk, rows, arrays)
            except Exception as err:  # a full disk: for the one who asked to deal with
                answer = reason(err), []
            send(answers, *answer)
    except (EOFError, BrokenPipeError):
        os._exit(0)  # nobody is there to flush for


def _read(desk: Desk, rows: Sequence[Any]) -> tuple[Any, list[NDArray[Any]]]:
    found = [desk.read(Picture(Path(path), stem)) for path, stem in rows]
    inputs = [one for one in found if isinstance(one, np.ndarray)]
    return [True if isinstance(one, np.ndarray) else None if one is None else str(one) for one in found], inputs


def _write(desk: Desk, rows: Sequence[Any], arrays: list[NDArray[Any]]) -> tuple[Any, list[NDArray[Any]]]:
    features = iter(arrays[len(rows) :])
    seen = [Seen(row[2], heatmap, next(features) if row[4] else None, row[3]) for row, heatmap in zip(rows, arrays, strict=False)]
    return [desk.write(Picture(Path(row[0]), row[1]), one) for row, one in zip(rows, seen, strict=True)], []


if __name__ == "__main__":
    main()
