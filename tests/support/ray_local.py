"""A Ray of our own for one file of tests: two workers, and nothing of it left afterwards. And a method that can be held up."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from torch import Tensor

from reshift.methods.detector import Prediction
from reshift.methods.trivial import Brightness

GATE = "RESHIFT_TEST_GATE"  # a folder: workers leave their process ids there, and wait until it holds "open"
FATAL = 0.98  # an image as bright as this kills whoever looks at it, in a worker
LIMIT = 120.0


class Gated(Brightness):
    """Brightness, once the gate is open."""

    def predict(self, x: Tensor) -> Prediction:
        gate = os.environ.get(GATE)
        if gate and parent_name() == "raylet":
            Path(gate, str(os.getpid())).touch()
            wait_until(Path(gate, "open").exists)
            if x.mean() > FATAL:
                os.kill(os.getpid(), 9)
        return super().predict(x)


METHOD = f"{__name__}:{Gated.__name__}"


@contextmanager
def local_ray(gate: Path | None = None) -> Iterator[Any]:
    """Start Ray with two workers; in the end, make sure that none of its processes is left."""
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


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Run ``work`` beside the block; if it fails, so does the test."""
    failures: list[BaseException] = []

    def caught() -> None:
        try:
            work()
        except BaseException as err:
            failures.append(err)

    thread = Thread(target=caught)
    thread.start()
    try:
        yield
    finally:
        thread.join(LIMIT)
    assert not thread.is_alive()
    assert not failures, failures


def stat(process: int) -> tuple[str, str, int] | None:
    """Name, state and parent, if there is such a process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    return name, rest.split()[0], int(rest.split()[1])


def parent_name() -> str:
    found = stat(os.getppid())
    return found[0] if found else ""


def alive(process: int) -> bool:
    found = stat(process)
    return found is not None and found[1] != "Z"


def descendants(roots: set[int]) -> set[int]:
    """Every process that stems from one of ``roots``."""
    parents = {int(path.name): found[2] for path in Path("/proc").glob("[0-9]*") if (found := stat(int(path.name)))}
    family = set(roots)
    while more := {process for process, parent in parents.items() if parent in family} - family:
        family |= more
    return family - roots
