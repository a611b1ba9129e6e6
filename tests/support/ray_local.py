"""A local Ray cluster for one file of tests, and a method whose predictions can be held up."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
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
def local_ray(gate: Path) -> Iterator[Any]:
    """Start Ray with two workers; at the end, check that none of its processes is left, nor imported what lay around."""
    if find_spec("ray") is None:
        pytest.skip("reshift[ray] is not installed")
    from reshift.methods import VARIABLE
    from reshift.system.ray_cluster import cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{Path(__file__).parents[1]}", prepend=os.pathsep)
        patch.setenv(VARIABLE, METHOD)
        patch.setenv(GATE, str(gate))
        before = descendants({os.getpid()})
        with TemporaryDirectory() as trap, _started_in(_write_trap(Path(trap)), cluster(2)) as ray:
            roots = descendants({os.getpid()}) - before
            yield ray
            started = roots | descendants(roots)
            assert [path.name for path in Path(trap).glob("*-was-imported")] == []
        assert started
        wait_until(lambda: not any(alive(process) for process in started))


def _write_trap(folder: Path) -> Path:
    """Files that no worker may import, although Ray would put the driver's current folder first."""
    for name in ("numpy", "pydantic", "torch"):
        note = folder / f"{name}-was-imported"
        (folder / f"{name}.py").write_text(
            f"open({str(note)!r}, 'w').close()\nraise ImportError('a file of the current folder')\n"
        )
    return folder


@contextmanager
def _started_in(folder: Path, entered: AbstractContextManager[Any]) -> Iterator[Any]:
    """Enter a context with ``folder`` as the current folder, and go back."""
    home = Path.cwd()
    os.chdir(folder)
    with entered as value:
        os.chdir(home)
        yield value
