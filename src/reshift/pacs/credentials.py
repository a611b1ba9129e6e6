"""Who we are to the archive: from the environment or a netrc file. Never from the command line, which other users can read."""

import netrc
import os
import stat
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from reshift.errors import UserError

USER, PASSWORD, TOKEN = "RESHIFT_PACS_USER", "RESHIFT_PACS_PASSWORD", "RESHIFT_PACS_TOKEN"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Credentials(NamedTuple):
    """A user with a password, or a token. It is never shown."""

    user: str | None = None
    password: str | None = None
    token: str | None = None

    def __repr__(self) -> str:
        return "Credentials(…)"

    @property
    def any(self) -> bool:
        """Whether there is something to send."""
        return self.user is not None or self.token is not None


def find_credentials(url: str, file: Path | None) -> Credentials:
    """Those of the netrc ``file`` for the host of ``url``, else those of the environment."""
    if file is not None:
        return _from_file(url, file)
    token, user, password = (os.environ.get(name) for name in (TOKEN, USER, PASSWORD))
    if token:
        return Credentials(token=token)
    if (user is None) != (password is None):
        raise UserError(f"{USER} and {PASSWORD} belong together; set both, or neither")
    return Credentials(user, password)


def checked_url(url: str) -> str:
    """The address of the DICOMweb service, without credentials in it."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise UserError("--dicomweb needs an address such as https://pacs.example.org/dicom-web")
    if parts.username is not None or parts.password is not None:
        raise UserError(f"--dicomweb: leave user and password out of the address; set {USER} and {PASSWORD}, or use --netrc")
    if parts.query or parts.fragment:
        raise UserError("--dicomweb: leave '?' and '#' out of the address")
    return url.rstrip("/")


def unencrypted(url: str, credentials: Credentials) -> bool:
    """Whether a password would travel for everybody to read."""
    parts = urlsplit(url)
    return parts.scheme == "http" and credentials.any and parts.hostname not in LOOPBACK


def _from_file(url: str, file: Path) -> Credentials:
    try:
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):
            raise UserError(f"{file}: is not a regular file")
        if about.st_mode & 0o077:
            raise UserError(f"{file}: others can read it; run chmod 600 {file}")
        found = netrc.netrc(str(file)).authenticators(urlsplit(url).hostname or "")
    except OSError as err:
        raise UserError(f"{file}: cannot be read ({err.strerror})") from None
    except (netrc.NetrcParseError, UnicodeDecodeError):  # its message quotes the file
        raise UserError(f"{file}: is not a netrc file; it needs lines 'machine HOST login USER password PASSWORD'") from None
    if found is None:
        raise UserError(
            f"{file}: has no entry for {urlsplit(url).hostname}; add 'machine {urlsplit(url).hostname} login … password …'"
        )
    user, _, password = found
    return Credentials(user or "", password or "") if user else Credentials(token=password)
