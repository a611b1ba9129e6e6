"""What a server is started with, and the words that its options are written in."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from reshift.errors import UserError

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
SIZES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@dataclass(frozen=True)
class Limits:
    """What a server accepts; everything beyond is refused with a line that names the limit."""

    upload_bytes: int = 4 * 2**30  # of one job, and of what its zip files unpack to
    files: int = 5_000  # of one job, those in zip files counted
    uploads: int = 32  # received at the same time
    queued: int = 1_000  # jobs that wait
    rate: float = 200.0  # requests per second and token, over some seconds; 0 is no limit
    free_bytes: int = 2**28  # that an upload must leave on the disk


@dataclass(frozen=True)
class Settings:
    """The options of ``reshift serve``."""

    models: Path
    store: Path
    data: Path | None = None  # images that jobs and trainings may name by their path
    host: str = "127.0.0.1"
    port: int = 8000
    tokens: Mapping[str, str] = field(default_factory=dict)  # name → token; empty: nobody is asked, on loopback only
    proxy_header: str | None = None  # in which a reverse proxy names the user it has let in
    keep: float | None = None  # seconds that finished jobs are kept; None: until they are deleted
    device: str = "auto"
    limits: Limits = Limits()

    def check(self) -> None:
        """Refuse what would be unsafe, or could not work."""
        if not is_loopback(self.host) and not self.tokens and self.proxy_header is None:
            raise UserError(
                f"--host {self.host} is open to other machines, so it needs --token-file F (a line 'NAME TOKEN' per user); "
                "without a token only 127.0.0.1 is served"
            )
        for name, folder in (("--models", self.models), ("--data", self.data)):
            if folder is not None and not folder.is_dir():
                raise UserError(f"{name} {folder}: no such folder; make it, or give another one")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host; a name other than localhost may lead anywhere."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def parse_duration(text: str) -> float:
    """``7d``, ``12h``, ``30m``, ``90s`` → seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip().lower())
    if found is None:
        raise UserError(f"'{text}' is not a length of time; write 30m, 12h, 7d or 4w")
    return float(found[1]) * UNITS[found[2]]


def parse_size(text: str) -> int:
    """``500M``, ``4G`` → bytes."""
    found = re.fullmatch(r"(\d+)([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None or not int(found[1]):
        raise UserError(f"'{text}' is not a size; write 500M or 4G")
    return int(found[1]) * SIZES[found[2]]


def read_tokens(path: Path) -> dict[str, str]:
    """A line ``NAME TOKEN`` per user, or one token alone; ``#`` begins a comment."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as err:
        raise UserError(f"{path}: cannot be read ({err.strerror}); give a file with a line 'NAME TOKEN' per user") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not a text file; write a line 'NAME TOKEN' per user") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split("#")[0].split()
        if not words:
            continue
        name, token = words if len(words) == 2 else ("token", words[0])
        if len(words) > 2 or name in found or token in found.values():
            raise UserError(f"{path}: line {number} is not 'NAME TOKEN', or repeats a name or token")
        found[name] = token
    if not found:
        raise UserError(f"{path}: holds no token; write a line 'NAME TOKEN' per user")
    return found
