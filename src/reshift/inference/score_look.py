"""The network looks at batch after batch: on a GPU, in a thread of its own that has two of them under way.

While the GPU looks at one, the maps of the one before come back, and this process sends those to be written and gets the next.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.inference.model import Embedded, Model, Run
from reshift.inference.score_hands import Batch
from reshift.inference.score_helper import Picture
from reshift.inference.score_picture import Seen

Good = Sequence[tuple[Picture, NDArray[np.float32]]]
Sighted = list[tuple[Picture, Seen]]


class Begun(NamedTuple):
    """A batch that the network is looking at."""

    batch: Good
    run: Run
    embedded: Embedded
    at: float


class Eye:
    """Looks; ``end`` in the order of ``begin``."""

    def __init__(self, model: Model) -> None:
        self.model, self.free = model, 0.0

    def begin(self, batch: Good) -> Begun:
        """Give the network a batch."""
        at, stack = time.monotonic(), np.stack([pixels for _, pixels in batch])
        run = self.model.launch(stack)
        return Begun(batch, run, self.model.launch_embedding(stack) if self.model.acquisition else lambda: None, at)

    def end(self, begun: Begun) -> Sighted:
        """Wait for what it says."""
        (scores, maps), features = begun.run(), begun.embedded()
        since, self.free = max(begun.at, self.free), time.monotonic()
        seconds = (self.free - since) / len(begun.batch)
        rows = [None] * len(maps) if features is None else list(features)
        found = zip(begun.batch, scores, maps, rows, strict=True)
        return [(picture, Seen(score, heatmap, row, seconds)) for (picture, _), score, heatmap, row in found]


def looked(model: Model, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Sighted]]:
    """Of every batch what the network cannot look at, and what it sees in the rest."""
    eye, before = Eye(model), None
    with ThreadPoolExecutor(1) as thread:

        def seen(begun: "Future[Begun]") -> Sighted:
            return thread.submit(lambda: eye.end(begun.result())).result()

        for batch in batches:
            good = [(picture, found) for picture, found in batch if isinstance(found, np.ndarray)]
            odd = [item for item in batch if not isinstance(item[1], np.ndarray)]
            now = thread.submit(eye.begin, good) if model.batch > 1 and not odd else None
            if before is not None:
                yield [], seen(before)
            if now is None:  # here and at once: what is odd may turn out to be a volume, at which the network has to look next
                yield odd, eye.end(eye.begin(good)) if good else []
            before = now
        if before is not None:
            yield [], seen(before)
