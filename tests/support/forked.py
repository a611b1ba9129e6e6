"""Processes that start at once: forked from one that has imported torch, which takes longer than most tests.

A forked process is a process like any other: it can be killed, has its own files, limits and environment, and ends like Python.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TextIO

# Nothing of reshift: programs may patch it before they import the rest.
PLAIN = ("torch", "numpy", "PIL.Image", "pydantic", "safetensors.torch", "typer", "rich.progress", "jinja2", "filelock")
TRITON = ("torch.testing", "triton.language", "pytest", "numpy")
INTERPRETED = {"TRITON_INTERPRET": "1"}  # Triton decides it when it is imported
LIMIT = 600.0  # seconds; nothing takes a tenth of it, except on a machine that does much else


class Forked:
    """A forked process, with those of ``subprocess.Popen``'s methods that tests use."""

    def __init__(self, code: str, args: Sequence[str], *, interpreted: bool = False) -> None:
        environment = {**os.environ, **(INTERPRETED if interpreted else {})}
        request = json.dumps({"code": code, "args": list(args), "folder": str(Path.cwd()), "environment": environment})
        pipes = [os.pipe() for _ in range(3)]
        socket.send_fds(_server(interpreted), [request.encode()], [theirs for _, theirs in pipes])
        for _, theirs in pipes:
            os.close(theirs)
        out, err, status = (os.fdopen(ours) for ours, _ in pipes)
        self._printed = ["", ""]
        self._readers = [Thread(target=self._read, args=(i, file), daemon=True) for i, file in enumerate((out, err))]
        for reader in self._readers:
            reader.start()
        self._status = status
        self.pid = int(status.readline())
        self.returncode: int | None = None

    def _read(self, place: int, file: TextIO) -> None:
        with file:
            self._printed[place] = file.read()

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0.0)[0]:
            self.returncode = int(self._status.readline())
        return self.returncode

    def wait(self, timeout: float = LIMIT) -> int:
        """Wait for its end, and return the exit code."""
        if self.returncode is None:
            select.select([self._status], [], [], timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return int(self.returncode or 0)

    def communicate(self, timeout: float = LIMIT) -> tuple[str, str]:
        """Wait for its end, and return what it printed."""
        self.wait(timeout)
        for reader in self._readers:
            reader.join(timeout)
        out, err = self._printed
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


@cache
def _server(interpreted: bool) -> socket.socket:
    """Start the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, **(INTERPRETED if interpreted else {})}
    names = TRITON if interpreted else PLAIN
    command = [sys.executable, __file__, str(theirs.fileno()), *names]
    process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()], cwd=Path(__file__).parents[2])
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _serve(requests: socket.socket) -> "Mapping[str, object] | None":
    """Fork for every request; return the request in the new process, None at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running = set[int]()
    while True:
        text, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        running -= {process for process in running if os.waitpid(process, os.WNOHANG if text else 0)[0]}
        if not text:
            return None
        running.add(process := os.fork())
        if process == 0:
            requests.close()
            return _divide(json.loads(text), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _divide(request: "Mapping[str, object]", out: int, err: int, status: int) -> "Mapping[str, object]":
    """Fork once more: one process runs the program, the other waits for its end and reports it."""
    child = os.fork()
    if child:
        os.write(status, f"{child}\n".encode())
        os.write(status, f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())
        os._exit(0)
    os.close(status)
    os.dup2(out, 1)
    os.dup2(err, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return request


if __name__ == "__main__":
    for _name in sys.argv[2:]:
        import_module(_name)
    _request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if _request is not None:
        os.chdir(str(_request["folder"]))
        os.environ.clear()
        os.environ.update(_request["environment"])  # type: ignore[call-overload]
        sys.argv, sys.path[0] = ["-c", *_request["args"]], ""  # type: ignore[misc]
        del __file__  # as for python -c; processes that are spawned would import this file
        exec(str(_request["code"]), globals())
