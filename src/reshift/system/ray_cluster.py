"""Join the Ray cluster that RAY_ADDRESS names, or start one on this machine; what goes wrong there is one line."""

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
from reshift.system.files import atomic_text, naming, writable_folder

REACH_SECONDS = 5.0
SETTINGS = b"\x04"  # type of an HTTP/2 frame
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + SETTINGS + bytes(5)  # how gRPC begins: a preface and no settings
STORE = 256 * 2**20  # bytes of shared memory on this machine; file names and records pass through it, never pictures or maps

NOTES = ".ray-run"  # folder in the output folder, while it runs


class Shared(NamedTuple):
    """An output folder as the driver sees it; every worker must see the same."""

    out: Path
    token: str
    version: str = __version__

    @property
    def notes(self) -> Path:
        """Where workers leave each other notes: a file survives them."""
        return self.out / NOTES

    def verify(self) -> None:
        """Make sure that this machine sees the driver's folder and may write there."""
        node = os.uname().nodename
        if self.version != __version__:
            raise UserError(f"node {node} has reshift {__version__}, the driver {self.version}; install the same on every node")
        try:
            seen = (self.notes / "token").read_text()
        except OSError:
            seen = ""
        if seen != self.token:
            raise UserError(f"{self.out}: is not the same folder on node {node}; choose an output folder that all nodes share")
        writable_folder(self.out)


class Share(NamedTuple):
    """What one worker gets."""

    workers: int
    cpus: int
    gpus: float  # below 1: several share a card


def check(device: str) -> None:
    """Refuse, before any work, what cannot run: no Ray, a cluster that does not answer, one card by number."""
    if find_spec("ray") is None or find_spec("pyarrow") is None:
        raise UserError("--engine ray needs: pip install 'reshift[ray]'")
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"device '{device}': with --engine ray it is auto, cpu or cuda; Ray gives every worker its own card")
    _reach(os.environ.get("RAY_ADDRESS", ""))


@contextmanager
def cluster(workers: int | None) -> Iterator[Any]:
    """Yield the ``ray`` module, connected for as long as the block runs; one that the caller has connected stays so."""
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its log files tell more than it would print between our lines
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # nor what it would print about a worker that died, on stdout
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a tool for medical images sends nothing to anybody
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address != "local":
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", str(int(REACH_SECONDS)))  # one a second
    import ray

    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address == "local":
        quiet |= {"num_cpus": max(workers or 0, cores()), "include_dashboard": False, "object_store_memory": STORE}
    with _own_signals(), _silent():
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
def shared_folder(out: Path) -> Iterator[Shared]:
    """Mark ``out`` for as long as the block runs, so that workers can tell it from a folder of the same name."""
    shared = Shared(out.resolve(), secrets.token_hex(16))
    shutil.rmtree(shared.notes, ignore_errors=True)  # of a run that was killed
    atomic_text(writable_folder(shared.notes) / "token", shared.token)
    try:
        yield shared
    finally:
        shutil.rmtree(shared.notes, ignore_errors=True)


def begin(mark: Path) -> int:
    """Note that a piece of work is begun, and by whom; return how often that makes it, over all workers that died at it."""
    with naming(mark), mark.open("a+") as file:
        file.write(f"{os.uname().nodename} {os.getpid()}\n")
        file.seek(0)
        return len(file.readlines())


def share(nodes: Sequence[dict[str, float]], workers: int | None, device: str) -> Share:
    """Divide the ``Resources`` of the nodes: a card each, or a part of one, where there are cards, else as many cores as fit."""
    gpus, cpus = (sum(int(node.get(name, 0)) for node in nodes) for name in ("GPU", "CPU"))
    if device == "cuda" and not gpus:
        raise UserError("device 'cuda': the Ray cluster has no GPUs; use auto or cpu")
    if gpus and device != "cpu":
        return Share(workers or gpus, 1, 1 / -(-(workers or gpus) // gpus))
    wanted = workers or cpus
    fitting = [n for n in range(1, cpus + 1) if sum(int(node.get("CPU", 0)) // n for node in nodes) >= wanted]
    return Share(wanted, max(fitting, default=1), 0)


def alive(ray: Any) -> list[dict[str, float]]:
    """Return the resources of every node that is up."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _reach(address: str) -> None:
    """Ray itself waits half a minute for a cluster that is not there; any gRPC server greets back at once."""
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
def _own_signals() -> Iterator[None]:
    """Ray replaces the handler of SIGTERM; ours keeps finished work and says so."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _silent() -> Iterator[None]:
    """Ray's libraries announce their log level on stderr, past Python; what matters comes as an exception."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
