"""``RUN/log.jsonl``: one object per logged step; TensorBoard beside it when asked for."""

import json
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from reshift.errors import UserError
from reshift.system.files import atomic_text
from reshift.training.checkpoint import Position


class RunLog:
    """Append-only, but for what a resume takes back: lines written after the checkpoint it starts from."""

    def __init__(self, run: Path, tensorboard: bool, *, active: bool = True) -> None:
        self.path, self.active = run / "log.jsonl", active
        self.begun, self.before = time.monotonic(), 0.0
        if active:
            self.path.touch()  # also a method that learns nothing leaves its (empty) log
        self.board = _tensorboard(run) if tensorboard and active else None

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None) -> None:
        if self.board is not None:
            self.board.close()

    @property
    def seconds(self) -> float:
        """Seconds of training, over all resumes."""
        return self.before + time.monotonic() - self.begun

    def rewind(self, position: Position) -> None:
        """Drop lines past ``position``, and a last line cut short by a kill."""
        self.before = position.seconds
        if not self.active or not self.path.exists():
            return
        kept = [line for line in self.path.read_text().splitlines() if _until(line, position)]
        atomic_text(self.path, "".join(f"{line}\n" for line in kept))

    def write(self, record: dict[str, Any]) -> None:
        """Append one record."""
        if not self.active:
            return
        record["seconds"] = self.seconds  # unrounded: ``rewind`` compares it with the checkpoint's
        try:
            with self.path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as err:
            raise UserError(f"{self.path}: could not be written ({err.strerror}); make room and use --resume") from err
        for name, value in record.items():
            if self.board is not None and isinstance(value, float) and "step" in record:
                self.board.add_scalar(f"{record['stage']}/{name}", value, record["step"])


def _until(line: str, position: Position) -> bool:
    try:
        return bool(json.loads(line)["seconds"] <= position.seconds)
    except (ValueError, KeyError):
        return False


def check_tensorboard(*, wanted: bool) -> None:
    """Refuse before anything is written if TensorBoard is asked for and missing."""
    if wanted and find_spec("tensorboard") is None:
        raise UserError("train.tensorboard needs TensorBoard: pip install 'reshift[log]'")


def _tensorboard(run: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(run / "tensorboard")
