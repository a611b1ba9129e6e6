"""Trainings: ``reshift train`` as a process of its own, into ``MODELS/NAME``, so that its bundle appears among the models.

What a run has reached is on the disk: its bundle, its log, and the lock that a training holds. The server keeps who started it
and with which arguments, so that a stopped run can be resumed; a training outlives a killed server.
"""

import json
import re
import signal
import subprocess  # nosec B404
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reshift.config import Config, merge, nearest, parse
from reshift.errors import UserError
from reshift.methods import METHODS
from reshift.serve.errors import Problem, not_found
from reshift.serve.store import below
from reshift.system.files import atomic_json
from reshift.system.lock import locked

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
FORBIDDEN = {"method", "train.cache", "train.device", "train.tensorboard", "data.subject"}  # places on the server's disk, or code
STOP_SECONDS = 60.0  # for a checkpoint
INTERRUPTED = 130


class Trainings:
    """The runs below ``--models``."""

    def __init__(self, models: Path, data: Path | None, home: Path, limit: int = 1) -> None:
        self.models, self.data, self.home, self.limit = models.resolve(), data, home, limit
        self.lock = threading.Lock()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        home.mkdir(mode=0o700, exist_ok=True)

    def all(self) -> list[dict[str, Any]]:
        """Every run that has a log, and every training that was started here."""
        runs = {path.parent.name for path in self.models.glob("*/log.jsonl")}
        return [self.show(name) for name in sorted(runs | {path.stem for path in self.home.glob("*.json")})]

    def show(self, name: str) -> dict[str, Any]:
        """State, settings and the last line of the log."""
        run, about = self._run(name), self._about(name)
        state, lines = self._state(name, run), list(read_log(run / "log.jsonl"))
        return {
            "name": name, "state": state, "owner": about.get("owner"), "method": about.get("method"), "data": about.get("data"),
            "profile": about.get("profile"), "config": about.get("config"), "seed": about.get("seed"),
            "error": self._error(name) if state == "failed" else None, "last": lines[-1] if lines else None,
            "url": f"/api/v1/trainings/{name}",
        }  # fmt: skip

    def log_path(self, name: str) -> Path:
        """Where a run logs."""
        self.show(name)
        return self._run(name) / "log.jsonl"

    def start(self, name: str, owner: str, values: Mapping[str, Any]) -> None:
        """Start a new training."""
        if NAME.fullmatch(name) is None:
            raise Problem(422, f"'{name[:80]}' is not a name; use letters, digits, '.', '_' and '-'")
        if self.data is None:
            raise Problem(422, "the server was started without --data, so there is nothing to train on")
        if (self.models / name).exists() or (self.home / f"{name}.json").exists():
            raise Problem(409, f"there is a run '{name}' already; choose another name, or resume it")
        method, config = str(values["method"]), dict(values["config"])
        if method not in METHODS:
            raise Problem(422, f"unknown method '{method[:80]}'{nearest(method, METHODS)}")
        settings = list(_assignments(config))
        parse(Config, merge(config, {"method": method}))
        place = below(self.data, str(values["data"]))
        relative = place.relative_to(self.data.resolve()).as_posix()
        about = {"owner": owner, "method": method, "data": relative, **{k: values[k] for k in ("profile", "config", "seed")}}
        self._spawn(name, {**about, "settings": settings}, resume=False)

    def resume(self, name: str) -> None:
        """Continue a training that was stopped, or whose process died."""
        about, state = self._about(name), self.show(name)["state"]
        if state in ("running", "done"):
            raise Problem(409, f"the training is {state}")
        if not about:
            raise Problem(409, "this run was not started here; resume it with 'reshift train --resume'")
        self._spawn(name, about, resume=(self._run(name) / "run.json").exists())

    def stop(self, name: str) -> None:
        """Let a training write a checkpoint and end."""
        process = self.processes.get(name)
        if self.show(name)["state"] != "running":
            raise Problem(409, "the training does not run")
        if process is None:
            raise Problem(409, "another process trains there; stop it where it was started")
        _end(process)

    def close(self) -> None:
        """End the trainings of this server; they can be resumed."""
        for process in self.processes.values():
            _end(process)

    def _spawn(self, name: str, about: dict[str, Any], *, resume: bool) -> None:
        assert self.data is not None
        with self.lock:
            running = sum(process.poll() is None for process in self.processes.values())
            if running >= self.limit:
                raise Problem(429, f"{running} trainings run already; wait for their end", headers={"Retry-After": "60"})
            arguments = ["--data", str(below(self.data, about["data"])), "--out", str(self.models / name)]
            arguments += ["--method", about["method"], "--profile", about["profile"], "--seed", str(about["seed"])]
            arguments += [word for text in about["settings"] for word in ("--set", text)] + ["--resume"] * resume
            atomic_json(self.home / f"{name}.json", about)
            with (self.home / f"{name}.log").open("wb") as log:
                command = [sys.executable, "-P", "-m", "reshift", "train", *arguments]
                self.processes[name] = subprocess.Popen(  # nosec B603
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )

    def _state(self, name: str, run: Path) -> str:
        process = self.processes.get(name)
        if process is not None and process.poll() is None:
            return "running"
        if (run / "bundle" / "config.json").exists():
            return "done"
        if process is not None and process.returncode not in (0, INTERRUPTED, -signal.SIGTERM):
            return "failed"
        if run.is_dir():
            try:
                with locked(run):
                    pass
            except UserError:
                return "running"
        return "stopped"

    def _error(self, name: str) -> str:
        lines = (self.home / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
        line = next((line for line in reversed(lines) if line.startswith("reshift: ")), "the training ended without a word")
        hidden = (f"{self.models}/", f"{self.data.resolve()}/" if self.data else "")
        for folder in filter(None, hidden):
            line = line.replace(folder, "")
        return line.removeprefix("reshift: ")

    def _about(self, name: str) -> dict[str, Any]:
        path = self.home / f"{name}.json"
        found: dict[str, Any] = json.loads(path.read_text()) if NAME.fullmatch(name) and path.is_file() else {}
        return found

    def _run(self, name: str) -> Path:
        known = NAME.fullmatch(name) is not None
        if not known or not ((self.models / name / "log.jsonl").is_file() or (self.home / f"{name}.json").is_file()):
            raise not_found("training")
        return self.models / name


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a log."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                record = None
            if isinstance(record, dict):
                yield record


def _assignments(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """``{"train": {"lr": 1e-4}}`` → ``train.lr=0.0001``: JSON values are TOML values."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if name in FORBIDDEN or not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", name):
            raise Problem(422, f"setting '{name[:100]}' cannot be set from here")
        if isinstance(value, Mapping):
            yield from _assignments(value, f"{name}.")
        elif value is not None:
            yield f"{name}={json.dumps(value)}"


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
