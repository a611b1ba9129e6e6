"""Jobs that meet on a device: the same bits as alone, common batches, smaller ones where memory runs out."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from reshift.errors import UserError
from reshift.inference.bundle import load_bundle
from reshift.inference.model import Model, load_model
from reshift.serve.batching import Cancelled, DeviceThread, SharedModel

Wait = Callable[[], tuple[list[float], NDArray[np.float32]]]


class Counting(SharedModel):
    """Notes the size of every batch, and has room for ``fits`` images."""

    def __init__(self, bundle: Path, thread: DeviceThread, fits: int) -> None:
        super().__init__(load_bundle(bundle), "cpu", thread, lambda: None)
        self.batch, self.fits, self.sizes = 8, fits, list[int]()

    def launch_batch(self, pixels: NDArray[np.float32]) -> Callable[[], tuple[list[float], NDArray[np.float32], None]]:
        self.sizes.append(len(pixels))
        return super().launch_batch(pixels)  # type: ignore[return-value]


@pytest.fixture
def images() -> NDArray[np.float32]:
    return np.random.default_rng(0).uniform(-1.0, 1.0, (20, 1, 32, 32)).astype(np.float32)


def predict_together(model: SharedModel, images: NDArray[np.float32]) -> list[tuple[list[float], NDArray[np.float32]]]:
    """Every image by a job of its own, all waiting when the device becomes free."""
    gate = threading.Event()
    blocked = threading.Thread(target=lambda: model.thread.call(gate.wait))
    blocked.start()
    waits: list[Wait] = [model.launch(image[None]) for image in images]
    gate.set()
    blocked.join()
    return [wait() for wait in waits]


def test_single_images_fill_batches_and_get_the_bits_they_get_alone(tiny_bundle: Path, images: NDArray[np.float32]) -> None:
    model = Counting(tiny_bundle, DeviceThread(), 99)
    found = predict_together(model, images)
    assert model.sizes == [8, 8, 4]
    scores, heatmaps = load_model(tiny_bundle, "cpu").launch(images)()
    assert [score for one, _ in found for score in one] == scores
    np.testing.assert_array_equal(np.concatenate([heatmap for _, heatmap in found]), heatmaps)
    assert model.launch_features(images)() is None


def test_out_of_memory_means_smaller_batches(
    tiny_bundle: Path, images: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, fits = Model.launch, 3

    def launch(self: Model, pixels: NDArray[np.float32], without: int | None = None) -> Wait:
        if len(pixels) > fits:
            raise torch.OutOfMemoryError
        return real(self, pixels, without)

    monkeypatch.setattr(Model, "launch", launch)
    model = Counting(tiny_bundle, DeviceThread(), fits)
    found = predict_together(model, images)
    assert [score for one, _ in found for score in one] == real(load_model(tiny_bundle, "cpu"), images)()[0]
    assert model.sizes[0] == 8
    assert max(model.sizes[5:]) <= 4  # it has learned
    fits = 0
    with pytest.raises(UserError, match="no memory left for one image"):
        model.launch(images[:1])()


def test_an_error_reaches_every_job_of_its_batch(tiny_bundle: Path, images: NDArray[np.float32]) -> None:
    model = Counting(tiny_bundle, DeviceThread(), 99)
    gate = threading.Event()
    blocked = threading.Thread(target=lambda: model.thread.call(gate.wait))
    blocked.start()
    waits = [model.launch(images[:1]), model.launch(images[:1, :, :16])]  # of two sizes, which no batch can hold
    gate.set()
    for wait in waits:
        with pytest.raises(ValueError, match="dimensions"):
            wait()
    assert model.launch(images[:1])()[0]


def test_a_cancelled_job_predicts_no_more(tiny_bundle: Path, images: NDArray[np.float32]) -> None:
    def check() -> None:
        raise Cancelled

    model = SharedModel(load_bundle(tiny_bundle), "cpu", DeviceThread(), check)
    with pytest.raises(Cancelled):
        model.launch(images[:1])
