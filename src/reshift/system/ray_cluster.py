"""Join the Ray cluster that RAY_ADDRESS names, or start one on this machine. A mistake is one line."""

import logging
import os
import secrets
import shutil
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from reshift import __version__
from reshift.errors import UserError
from reshift.system.cores import cores
from reshift.system.files import atomic_text, create_output_folder, writing

REACH_SECONDS = 5.0  # for a cluster to answer
SETTINGS = b"\x04"  # type of an HTTP/2 frame
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + SETTINGS + bytes(5)  # how gRPC begins: a preface and empty settings
STORE_BYTES = 256 * 2**20  # of shared memory on this machine: only file names and records pass through it, no images
NOTES = ".ray-run"  # a folder in the output folder during the run


class SharedFolder(NamedTuple):
    """The output folder as the driver sees it; every worker must see the same folder."""

    out: Path
    token: str
    home: Path  # the driver's current folder
    version: str = __version__

    @property
    def notes(self) -> Path:
        """Files about the run, which outlive a worker that dies."""
        return self.out / NOTES

    def verify(self) -> None:
        """Check that this machine sees the driver's folder and may write there."""
        node = os.uname().nodename
        if self.version != __version__:
            raise UserError(f"node {node} has reshift {__version__}, the driver {self.version}; install the same on every node")
        try:
            seen = (self.notes / "token").read_text()
        except OSError:
            seen = ""
        if seen != self.token:
            raise UserError(f"{self.out}: is not the same folder on node {node}; choose an output folder that all nodes share")
        create_output_folder(self.out)

    def enter(self, *, relative: bool) -> None:
        """Verify the folder, and make the driver's current folder ours; with ``relative`` names it must exist here."""
        self.verify()
        try:
            os.chdir(self.home)
        except OSError as err:
            if relative:
                line = f"node {os.uname().nodename} cannot go there ({err.strerror})"
                raise UserError(f"{self.home}: {line}; give inputs by their absolute paths") from None
            os.chdir(self.out)


class Share(NamedTuple):
    """The resources of one worker."""

    workers: int
    cpus: int
    gpus: float  # below 1: several workers share a GPU


def check(device: str) -> None:
    """Refuse what cannot run before any work is done: no Ray, a cluster that does not answer, a GPU by its number."""
    if find_spec("ray") is None or find_spec("pyarrow") is None:
        raise UserError("--engine ray needs: pip install 'reshift[ray]'")
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"device '{device}': with --engine ray it is auto, cpu or cuda; Ray gives every worker its own GPU")
    _reach(os.environ.get("RAY_ADDRESS", ""))


@contextmanager
def cluster(workers: int | None) -> Iterator[Any]:
    """Yield the ``ray`` module, connected during the block; if it was connected before, it stays connected."""
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its log files have the details
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # it would print on stdout that a worker died
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a tool for medical images sends no statistics
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address != "local":
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", str(int(REACH_SECONDS)))  # one a second
    import ray

    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address == "local":
        quiet |= {"num_cpus": max(workers or 0, cores()), "include_dashboard": False, "object_store_memory": STORE_BYTES}
    with _keep_signal_handler(), _no_stderr(), _outside_current_folder():
        try:
            ray.init(address=address, **quiet)
        except (OSError, RuntimeError, ValueError) as err:
            raise UserError(
                f"Ray at {address}: {_line(err)}; check RAY_ADDRESS and RAY_AUTH_MODE, or unset them to run on this machine"
            ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def shared_folder(out: Path) -> Iterator[SharedFolder]:
    """Mark ``out`` during the block, so that workers can tell it from another folder of the same name."""
    shared = SharedFolder(out.resolve(), secrets.token_hex(16), Path.cwd())
    shutil.rmtree(shared.notes, ignore_errors=True)  # of a run that was killed
    atomic_text(create_output_folder(shared.notes) / "token", shared.token)
    try:
        yield shared
    finally:
        shutil.rmtree(shared.notes, ignore_errors=True)


def count_attempt(path: Path) -> int:
    """Note in a file that this worker starts a piece of work; return how many workers have started it, this one included."""
    with writing(path), path.open("a+") as file:
        file.write(f"{os.uname().nodename} {os.getpid()}\n")
        file.seek(0)
        return len(file.readlines())


def share(nodes: Sequence[dict[str, float]], workers: int | None, device: str) -> Share:
    """Divide the nodes' resources: one GPU or a part of one per worker if there are GPUs, otherwise as many cores as fit."""
    gpus, cpus = (sum(int(node.get(name, 0)) for node in nodes) for name in ("GPU", "CPU"))
    if device == "cuda" and not gpus:
        raise UserError("device 'cuda': the Ray cluster has no GPUs; use auto or cpu")
    if gpus and device != "cpu":
        return Share(workers or gpus, 1, 1 / -(-(workers or gpus) // gpus))
    wanted = workers or cpus
    fitting = [n for n in range(1, cpus + 1) if sum(int(node.get("CPU", 0)) // n for node in nodes) >= wanted]
    return Share(wanted, max(fitting, default=1), 0)


def node_resources(ray: Any) -> list[dict[str, float]]:
    """Return the resources of every node that is alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _reach(address: str) -> None:
    """Check that a gRPC server answers at ``address``; Ray itself would wait half a minute for a missing cluster."""
    if address in ("", "local", "auto"):
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise UserError(f"RAY_ADDRESS={address}: is not HOST:PORT (6379 unless you chose another), auto or local")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS) as link:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                link.sendall(GREETING)
                if link.recv(9, socket.MSG_WAITALL)[3:4] != SETTINGS:
                    raise ConnectionError("another service is there")
    except (OSError, OverflowError, UnicodeError) as err:
        raise UserError(
            f"RAY_ADDRESS={address}: no Ray cluster answers there ({_line(err)}); start one, or unset it to run on this machine"
        ) from None


def _line(err: Exception) -> str:
    return getattr(err, "strerror", None) or " ".join(str(err).split())[:300].rstrip(".") or type(err).__name__


@contextmanager
def _keep_signal_handler() -> Iterator[None]:
    """Restore our handler of SIGTERM, which Ray replaces: ours keeps finished work."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _outside_current_folder() -> Iterator[None]:
    """Connect from the root folder: workers import from the driver's current folder first, and a numpy.py may lie there."""
    home, path = Path.cwd(), os.environ.get("PYTHONPATH")
    if path is not None:  # an empty entry would be the current folder, too
        os.environ["PYTHONPATH"] = os.pathsep.join(str(home / entry) for entry in path.split(os.pathsep) if entry)
    os.chdir(home.anchor)
    try:
        yield
    finally:
        os.chdir(home)
        if path is not None:
            os.environ["PYTHONPATH"] = path


@contextmanager
def _no_stderr() -> Iterator[None]:
    """Suppress what Ray's libraries write to stderr while connecting; errors come as exceptions."""
    stderr, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)
