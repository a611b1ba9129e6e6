"""Many jobs, one device: jobs run in threads of their own, and what they want predicted meets in common batches.

A job goes the usual way of ``reshift score``. Only ``Model.launch`` differs: it hands prepared images to the one thread that
uses the device, which takes whatever has come together while the device was busy, in the order of arrival. So a single image
waits for one batch and not for another user's folder, and many single images fill a batch.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from reshift.errors import UserError
from reshift.inference.bundle import Bundle
from reshift.inference.model import Model
from reshift.inference.stream import MAX_PENDING

Predicted = tuple[list[float], NDArray[np.float32], NDArray[np.float64] | None]  # scores, heat-maps, features
Wait = Callable[[], Predicted]


class Cancelled(BaseException):
    """The job was cancelled. Not an ``Exception``: a file that fails is recorded, and this is no file that fails."""


class Request(NamedTuple):
    """Images of one job that wait for the device, or a function to call there."""

    model: "SharedModel | None"
    pixels: NDArray[np.float32]
    call: Callable[[], Any] | None
    future: "Future[Any]"


class DeviceThread:
    """The only thread of a worker process that uses its device."""

    def __init__(self) -> None:
        self.waiting: deque[Request] = deque()
        self.changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True, name="device").start()

    def predict(self, model: "SharedModel", pixels: NDArray[np.float32]) -> "Future[Predicted]":
        """Predict ``(B, C, S, S)``, together with what else waits for the same model."""
        return self._add(Request(model, pixels, None, Future()))

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function between two batches, and wait for it."""
        return self._add(Request(None, np.empty(0, np.float32), function, Future())).result()

    def _add(self, request: Request) -> "Future[Any]":
        with self.changed:
            self.waiting.append(request)
            self.changed.notify()
        return request.future

    def _run(self) -> None:
        flying: deque[tuple[list[Request], Wait]] = deque()  # launched, not yet waited for
        while True:
            group = self._take(block=not flying)
            if group and group[0].call is not None:
                _answer(group[0].future, group[0].call)
            elif group:
                self._launch(group, flying)
            if flying and (not group or len(flying) >= MAX_PENDING):
                _finish(*flying.popleft())

    def _take(self, *, block: bool) -> list[Request]:
        """The oldest request, with later ones of the same model up to its batch."""
        with self.changed:
            while block and not self.waiting:
                self.changed.wait()
            if not self.waiting:
                return []
            first = self.waiting.popleft()
            group, images = [first], len(first.pixels)
            room = first.model.batch if first.model is not None else 0
            for request in list(self.waiting) if room else ():
                if request.model is first.model and images + len(request.pixels) <= room:
                    self.waiting.remove(request)
                    group.append(request)
                    images += len(request.pixels)
            return group

    def _launch(self, group: list[Request], flying: "deque[tuple[list[Request], Wait]]") -> None:
        model = group[0].model
        assert model is not None
        try:
            flying.append((group, model.launch_batch(np.concatenate([request.pixels for request in group]))))
        except Exception as err:  # every job of the batch hears of it
            for request in group:
                request.future.set_exception(err)


def _answer(future: "Future[Any]", function: Callable[[], Any]) -> None:
    try:
        future.set_result(function())
    except Exception as err:
        future.set_exception(err)


def _finish(group: list[Request], wait: Wait) -> None:
    """Wait for a batch and give every job its part."""
    try:
        scores, heatmaps, features = wait()
    except Exception as err:
        for request in group:
            request.future.set_exception(err)
        return
    at = 0
    for request in group:
        part = slice(at, at + len(request.pixels))
        request.future.set_result((scores[part], heatmaps[part], None if features is None else features[part]))
        at = part.stop


class SharedModel(Model):
    """A model whose predictions go through the device thread; ``check`` is asked before each of them."""

    def __init__(self, bundle: Bundle, device: str, thread: DeviceThread, check: Callable[[], None]) -> None:
        super().__init__(bundle, device)
        self.thread, self.check, self.mine = thread, check, threading.local()

    @cached_property
    def calibration_notes(self) -> list[str]:
        """What every job of this model is told about its thresholds; the range of the rate takes 8 ms to find."""
        found = self.bundle.calibration
        return ["the model has no calibration: no p-values, flags or overlays"] if found is None else found.warnings()

    def launch(
        self, pixels: NDArray[np.float32], without: int | None = None
    ) -> Callable[[], tuple[list[float], NDArray[np.float32]]]:
        """As ``Model.launch``, in a batch with other jobs."""
        self.check()
        if without is not None:
            wait: Callable[[], tuple[list[float], NDArray[np.float32]]] = self.thread.call(
                lambda: Model.launch(self, pixels, without)
            )
            return wait
        future = self.mine.last = self.thread.predict(self, pixels)
        return lambda: future.result()[:2]

    def launch_features(self, _pixels: NDArray[np.float32]) -> Callable[[], NDArray[np.float64] | None]:
        """The features that came with this thread's last ``launch``; ``stream`` asks for them right after it."""
        future: Future[Predicted] = self.mine.last
        return lambda: future.result()[2]

    def launch_batch(self, pixels: NDArray[np.float32]) -> Wait:
        """In the device thread: predict a batch, or where it does not fit into the device's memory, its halves."""
        try:
            prediction, features = Model.launch(self, pixels), Model.launch_features(self, pixels)
        except torch.OutOfMemoryError:
            if len(pixels) == 1:
                raise UserError("the device has no memory left for one image; use a smaller model, or another device") from None
            self.batch = max(1, len(pixels) // 2)
            torch.cuda.empty_cache()
            halves = [self.launch_batch(part)() for part in (pixels[: self.batch], pixels[self.batch :])]
            return lambda: _joined(halves)
        return lambda: (*prediction(), features())

    def rescore(self, scores: list[float], before: NDArray[np.float32], after: NDArray[np.float32]) -> list[float]:
        """As ``Model.rescore``, in the device thread."""
        found: list[float] = self.thread.call(lambda: Model.rescore(self, scores, before, after))
        return found

    def embedding(self, pixels: NDArray[np.float32]) -> NDArray[np.float32] | None:
        """As ``Model.embedding``, in the device thread."""
        found: NDArray[np.float32] | None = self.thread.call(lambda: Model.embedding(self, pixels))
        return found

    def restored(self, x: torch.Tensor) -> torch.Tensor:
        """As ``Model.restored``, in the device thread."""
        found: torch.Tensor = self.thread.call(lambda: Model.restored(self, x))
        return found


def _joined(parts: list[Predicted]) -> Predicted:
    features = [part[2] for part in parts if part[2] is not None]
    scores = [score for part in parts for score in part[0]]
    return scores, np.concatenate([part[1] for part in parts]), np.concatenate(features) if features else None
