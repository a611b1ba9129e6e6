"""Who did what and when: ``STORE/audit.jsonl``. No file names, notes or results in it: those may be about patients."""

import logging
import threading
from datetime import UTC, datetime
from pathlib import Path

from reshift.errors import UserError
from reshift.system.files import append_json

log = logging.getLogger("reshift.serve")


class Audit:
    """Appends a line per action."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, threading.Lock()
        path.touch(mode=0o600)

    def write(self, who: str, what: str, **about: str | int | None) -> None:
        """Append a line; where the disk is full the service goes on, and its log says what is missing."""
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "who": who, "what": what, **about}
        try:
            with self.lock:
                append_json(self.path, line)
        except UserError as err:
            log.error("%s: '%s' by %s is not in the audit log", err, what, who)
