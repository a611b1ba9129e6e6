"""``python -m reshift.inference.score_helper``: reads and writes pictures for a scoring process, which asks through a pipe.

It keeps what it has read until it writes it (helping.py).
"""

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.errors import UserError, reason
from reshift.inference.calibration import Calibration
from reshift.inference.records import Record
from reshift.inference.score_picture import Loaded, Seen, Task, load, write
from reshift.system.workers import Said, serve


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


def first(task: Task) -> Any:
    """The first message."""
    calibration = None if task.calibration is None else task.calibration.model_dump_json()
    return [task.data.model_dump_json(), str(task.out), calibration, task.overlays]


def to_read(pictures: Sequence[Picture]) -> Said:
    """Ask for ``Desk.read``."""
    return ["read", [(str(path), stem) for path, stem in pictures]], []


def to_write(items: Sequence[tuple[Picture, Seen]]) -> Said:
    """Ask for ``Desk.write``."""
    rows = [(str(picture.path), picture.stem, seen.score, seen.seconds, seen.features is not None) for picture, seen in items]
    features = [seen.features for _, seen in items if seen.features is not None]
    return ["write", rows], [np.stack([seen.heatmap for _, seen in items]), *([np.stack(features)] if features else [])]


def outcomes(said: Said) -> tuple[list[Outcome], int]:
    """The answer to ``to_read``, and how many bytes the pictures fill until they are written."""
    (found, held), inputs = said[0], chain.from_iterable(said[1])
    return [next(inputs) if what is True else None if what is None else UserError(what) for what in found], held


def records(said: Said) -> list[Record]:
    """The answer to ``to_write``."""
    found: list[Record] = said[0]
    return found


# ---- the process -------------------------------------------------------------------------------------------------------


def _begin(told: Any) -> Callable[[Any, list[NDArray[Any]]], Said]:
    data, out, calibration, overlays = told
    known = None if calibration is None else Calibration.model_validate_json(calibration)
    desk = Desk(Task(DataConfig.model_validate_json(data), Path(out), known, dicom=False, overlays=overlays))
    return lambda asked, arrays: _read(desk, asked[1]) if asked[0] == "read" else _write(desk, asked[1], arrays)


def _read(desk: Desk, rows: Sequence[Any]) -> Said:
    found = [desk.read(Picture(Path(path), stem)) for path, stem in rows]
    inputs: list[NDArray[Any]] = [one for one in found if isinstance(one, np.ndarray)]
    said = [True if isinstance(one, np.ndarray) else None if one is None else str(one) for one in found]
    held = sum(desk.held[stem].image.pixels.nbytes for (_, stem), what in zip(rows, said, strict=True) if what is True)
    return (said, held), [np.stack(inputs)] if inputs else []


def _write(desk: Desk, rows: Sequence[Any], arrays: list[NDArray[Any]]) -> Said:
    features = chain.from_iterable(arrays[1:])
    found = zip(rows, arrays[0], strict=True)
    seen = [Seen(row[2], heatmap, next(features) if row[4] else None, row[3]) for row, heatmap in found]
    return [desk.write(Picture(Path(row[0]), row[1]), one) for row, one in zip(rows, seen, strict=True)], []


if __name__ == "__main__":
    serve(_begin)
