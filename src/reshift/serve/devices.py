"""Worker processes as the server sees them: what runs there, and how much more they can take."""

import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reshift.serve.jobs import Job

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

log = logging.getLogger("reshift.serve")

SLOTS = {"cpu": 4, "cuda": 64}  # jobs at the same time: two batches of single images; a CPU takes images one by one
SLOT_BYTES = 2**26  # of an upload, for which a job takes one more slot: large volumes do not meet in memory


@dataclass
class Running:
    """A job at hand."""

    job: Job
    slots: int
    done: int = 0
    cancelled: bool = False


@dataclass
class Device:
    """A worker process as the server sees it."""

    name: str
    process: Any = None
    pipe: "Connection[Any, Any] | None" = None
    ready: bool = False
    running: dict[str, Running] = field(default_factory=dict)
    deaths: int = 0  # in a row, without a job finished between them

    @property
    def slots(self) -> int:
        """How many more jobs it can take."""
        return all_slots(self) - sum(found.slots for found in self.running.values())


def all_slots(device: Device) -> int:
    """How many jobs a device takes at the same time."""
    return SLOTS["cuda" if device.name.startswith("cuda") else "cpu"]


def slots_of(job: Job, device: Device) -> int:
    """How many of them a job counts for."""
    return min(1 + job.bytes // SLOT_BYTES, all_slots(device))


def send(pipe: "Connection[Any, Any]", message: dict[str, Any]) -> None:
    """Tell a worker; if it has ended, whoever listens to it will notice."""
    try:
        pipe.send_bytes(json.dumps(message).encode())
    except OSError:
        log.warning("a worker has ended before it could be told '%s'", message["kind"])
