"""Predictions replayed as CUDA graphs: when, for how many shapes, and with the results of plain calls."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from test_windows import make
from torch import Tensor

from reshift.config import Config, DataConfig
from reshift.inference.bundle import Bundle
from reshift.inference.model import Model
from reshift.kernels.graphs import GraphCache, Recording
from reshift.methods.detector import Detector
from reshift.methods.reshift.method import Reshift
from reshift.methods.reshift.settings import ReshiftSettings
from reshift.system.device import device_scope


class Pair(NamedTuple):
    """An output of two tensors."""

    double: Tensor
    square: Tensor


class Tape:
    """In place of a CUDA graph: replaying computes from the recorded input into the recorded output."""

    def __init__(self, function: Callable[[Tensor], Any], x: Tensor) -> None:
        self.function, self.x, self.out = function, x, function(x)
        self.replays = 0

    def replay(self) -> None:
        """Compute once more."""
        self.replays += 1
        for kept, new in zip(self.out, self.function(self.x), strict=True):
            kept.copy_(new)


class Taped(GraphCache):
    """A graph cache without a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.tapes: list[Tape] = []

    def _record(self, function: Callable[[Tensor], Any], x: Tensor) -> Recording:
        self.tapes.append(Tape(function, x.clone()))
        return Recording(cast("torch.cuda.CUDAGraph", self.tapes[-1]), self.tapes[-1].x, self.tapes[-1].out)


def work(x: Tensor) -> Pair:
    return Pair(2 * x, x * x)


def test_the_fourth_call_records_and_results_are_copies() -> None:
    cache, counts, results = Taped(), list[int](), list[Pair]()
    for i in range(7):
        results.append(cache("key", work, torch.tensor([float(i), 1.0])))
        counts.append(sum(tape.replays for tape in cache.tapes))
    assert counts == [0, 0, 0, 1, 2, 3, 4]
    assert len(cache.tapes) == 1
    assert all(isinstance(result, Pair) for result in results)
    assert [float(result.double[0]) for result in results] == [0, 2, 4, 6, 8, 10, 12]  # no call has overwritten another's
    assert [float(result.square[0]) for result in results] == [0, 1, 4, 9, 16, 25, 36]


def call(cache: GraphCache, key: str, times: int = 1) -> None:
    for _ in range(times):
        assert float(cache(key, work, torch.tensor([3.0])).square) == 9.0


def test_what_cannot_be_recorded_runs_plainly() -> None:
    class Full(Taped):
        tries = 0

        def _record(self, function: Callable[[Tensor], Any], x: Tensor) -> Recording:
            self.tries += 1
            raise torch.OutOfMemoryError

    cache = Full()
    call(cache, "a", 8)
    assert cache.tries == 1


def test_threads_do_not_mix_their_results() -> None:
    class Slow(Tape):
        def replay(self) -> None:
            seen = self.x.clone()
            time.sleep(0.01)  # long enough for another thread to write its input, if it could
            assert torch.equal(seen, self.x)
            super().replay()

    class Slowly(GraphCache):
        def _record(self, function: Callable[[Tensor], Any], x: Tensor) -> Recording:
            tape = Slow(function, x.clone())
            return Recording(cast("torch.cuda.CUDAGraph", tape), tape.x, tape.out)

    cache = Slowly()
    call(cache, "key", 4)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: float(cache("key", work, torch.tensor([float(i)])).double), range(12)))
    assert found == [2.0 * i for i in range(12)]


def test_few_recordings_are_kept_and_the_least_recently_used_is_dropped() -> None:
    cache = Taped()
    for key in "abcd":
        call(cache, key, 4)
    call(cache, "a")
    call(cache, "e", 4)
    assert list(cache.recordings) == ["c", "d", "a", "e"]
    call(cache, "b", 3)  # it must become frequent again
    assert list(cache.recordings) == ["c", "d", "a", "e"]
    call(cache, "b")
    assert list(cache.recordings) == ["d", "a", "e", "b"]


# ---- in a model ------------------------------------------------------------------------------------------------------------


def images(number: int) -> NDArray[np.float32]:
    return np.random.default_rng(number).uniform(-1.0, 1.0, (number, 1, 32, 32)).astype(np.float32)


def model(detector: Detector) -> Model:
    return Model(Bundle(detector, Config(data=DataConfig(size=32)), None, {}, ""), "cpu")


def test_a_model_gives_the_same_results_and_does_not_record_rare_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, replayed = model(make(32, 1)), model(make(32, 1))
    assert plain.replays is None  # on the CPU
    replayed.replays = taped = Taped()
    for number in (2, 2, 2, 2, 2, 1):
        (scores, maps), (expected, heat) = replayed.launch(images(number))(), plain.launch(images(number))()
        assert scores == expected
        assert np.array_equal(maps, heat)
    assert [tape.replays for tape in taped.tapes] == [2]
    monkeypatch.setenv("RESHIFT_AMP", "bf16")
    for _ in range(4):
        maps, heat = replayed.launch(images(2))()[1], plain.launch(images(2))()[1]
        assert np.array_equal(maps, heat)  # what was recorded in float32 is not what is replayed here
    assert [tape.replays for tape in taped.tapes] == [2, 1]


def test_a_fold_left_out_has_a_recording_of_its_own() -> None:
    torch.manual_seed(0)
    settings = ReshiftSettings(folds=2, widths=(8, 8, 8, 8), denoising_widths=(8, 8, 8), features="off", sources=("offset",))
    detector = Reshift(settings, 32, 1).eval().requires_grad_(False)
    plain, replayed = model(detector), model(detector)
    replayed.replays = taped = Taped()
    for _ in range(5):
        for without in (None, 0, 1):
            assert replayed.launch(images(2), without)()[0] == plain.launch(images(2), without)()[0]
    assert [tape.replays for tape in taped.tapes] == [2, 2, 2]


def test_work_goes_to_the_gpu_where_the_tensors_are() -> None:
    """There is none here; what is entered says which it would be."""
    second = device_scope(torch.device("cuda:1"))
    assert isinstance(second, torch.cuda.device)
    assert second.idx == 1
    with device_scope(torch.device("cpu")):  # nothing to do
        assert torch.zeros(1).device.type == "cpu"
