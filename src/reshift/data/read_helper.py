"""``python -m reshift.data.read_helper``: reads and prepares images for another process (helping.py)."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, Self, TypeVar
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from reshift.config import DataConfig
from reshift.data.manifest import Case
from reshift.data.prepared_cache import reader
from reshift.system.workers import Helper, Said, in_turn, serve

CHUNK = 64  # images of a message

Used = TypeVar("Used")


class Readers:
    """Some of these processes. Neighbours go to the same one: they may be slices of one volume."""

    def __init__(self, config: DataConfig, count: int, *, kept: bool = False) -> None:
        self.config = config
        self.helpers = [Helper("reshift.data.read_helper", [config.model_dump_json(), kept]) for _ in range(count)]
        self.turns = cycle(self.helpers)
        self.close = finalize(self, _close, self.helpers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, cases: Sequence[Case], use: Callable[[NDArray[np.float32]], Used]) -> "Future[Used]":
        """What ``use`` makes of their network inputs; all by one process, the next of them each time."""
        return next(self.turns).ask(*_to_read(cases), lambda said: use(said[1][0]))

    def check(self, cases: Sequence[Case]) -> None:
        """Read all and keep nothing; the first image that cannot be read is an error."""
        parts = (cases[start : start + CHUNK] for start in range(0, len(cases), CHUNK))
        for _ in in_turn((self.ask(part, lambda _: None) for part in parts), 2 * len(self.helpers)):
            pass

    def load(self, cases: Sequence[Case]) -> NDArray[np.float32]:
        """Network inputs ``(n, C, size, size)``, in order; the first image that cannot be read is an error."""
        out = np.empty((len(cases), self.config.channels, self.config.size, self.config.size), dtype=np.float32)
        cuts = np.linspace(0, len(cases), len(self.helpers) + 1).round().astype(int).tolist()
        asked = []
        for helper, (first, last) in zip(self.helpers, pairwise(cuts), strict=True):
            for start in range(first, last, CHUNK):
                part = slice(start, min(last, start + CHUNK))
                asked.append(helper.ask(*_to_read(cases[part]), partial(_put, out, part)))
        for future in asked:
            future.result()
        return out


def _close(helpers: Sequence[Helper]) -> None:
    with ExitStack() as all_of_them:
        for helper in helpers:
            all_of_them.callback(helper.close)


def _to_read(cases: Sequence[Case]) -> Said:
    return [(str(case.image), case.slice) for case in cases], []


def _put(out: NDArray[np.float32], part: slice, said: Said) -> None:
    out[part] = said[1][0]  # at once: all of them twice might not fit into memory


def _begin(told: Any) -> Callable[[Any, list[NDArray[Any]]], Said]:
    config, kept = told
    read = reader(DataConfig.model_validate_json(config), kept=kept)

    def work(rows: Any, _: list[NDArray[Any]]) -> Said:
        return None, [np.stack([read(Case("", Path(path), None, "", 0, "train", "", slice=at)) for path, at in rows])]

    return work


if __name__ == "__main__":
    serve(_begin)
