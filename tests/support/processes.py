"""Wait for processes and look at them, the way Linux shows them in ``/proc``."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from forked import LIMIT, Forked


def wait_until(condition: Callable[[], object], process: Forked | None = None) -> None:
    """Wait until a condition is true, during which ``process`` must not end."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Run ``work`` in a thread during the block; if it fails, so does the test."""
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


def parent_name() -> str:
    """The name of this process's parent."""
    found = _stat(os.getppid())
    return found[0] if found else ""


def alive(process: int) -> bool:
    """Whether the process exists and has not ended."""
    found = _stat(process)
    return found is not None and found[1] not in "ZX"


def descendants(roots: set[int]) -> set[int]:
    """All processes that were started by ``roots``, directly or not."""
    parents = {int(path.name): found[2] for path in Path("/proc").glob("[0-9]*") if (found := _stat(int(path.name)))}
    family = set(roots)
    while more := {process for process, parent in parents.items() if parent in family} - family:
        family |= more
    return family - roots


def worker_processes(parent: int) -> list[int]:
    """The worker processes that ``parent`` has started; its resource tracker is not one of them."""
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def _stat(process: int) -> tuple[str, str, int] | None:
    """Name, state and parent of a process; None if there is no such process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    return name, rest.split()[0], int(rest.split()[1])
