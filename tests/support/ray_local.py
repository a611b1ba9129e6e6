"""A local Ray cluster for one file of tests, and a method whose predictions can be held up."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from processes import alive, descendants, parent_name, wait_until
from torch import Tensor

from reshift.methods.detector import Prediction
from reshift.methods.trivial import Brightness

GATE = "RESHIFT_TEST_GATE"  # a folder: workers write their process ids there, and wait until it contains "open"
FATAL = 0.98  # an image with this mean kills the worker that predicts it


class Gated(Brightness):
    """Brightness, but a Ray worker waits until the gate is open."""

    def forward(self, x: Tensor) -> Prediction:
        gate = os.environ.get(GATE)
        if gate and parent_name() == "raylet":
            Path(gate, str(os.getpid())).touch()
            wait_until(Path(gate, "open").exists)
            if x.mean() > FATAL:
                os.kill(os.getpid(), 9)
        return super().forward(x)


METHOD = f"{__name__}:{Gated.__name__}"


@contextmanager
def local_ray(gate: Path | None = None) -> Iterator[Any]:
    """Start Ray with two workers; at the end, check that none of its processes is left."""
    if find_spec("ray") is None:
        pytest.skip("reshift[ray] is not installed")
    from reshift.methods import VARIABLE
    from reshift.system.ray_cluster import cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv(
            "PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{Path(__file__).parents[1] / 'bench'}", prepend=os.pathsep
        )
        patch.setenv(VARIABLE, METHOD)
        if gate:
            patch.setenv(GATE, str(gate))
        before = descendants({os.getpid()})
        with cluster(2) as ray:
            roots = descendants({os.getpid()}) - before
            yield ray
            started = roots | descendants(roots)
        assert started
        wait_until(lambda: not any(alive(process) for process in started))
