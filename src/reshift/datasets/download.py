"""A data set as downloaded: archives (.zip, .tar, .tar.gz) are unpacked to a temporary folder, which is removed afterwards.

Archives are not trusted, as in ``data.archive``: names that lead elsewhere, links, special files, encryption and absurd sizes are
refused. An archive in an archive is opened, too, because Kaggle packs the tar of BraTS once more. What is cut short or damaged is
reported and left out, and the rest is used. Results name files as ``ARCHIVE.tar/NAME``.
"""

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from zipfile import BadZipFile, ZipFile

from reshift.data import archive as rules
from reshift.data.files import list_files
from reshift.errors import UserError, reason

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
DEPTH = 2  # archives within archives
DAMAGE = (tarfile.TarError, BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError, ValueError)
BLOCK = tarfile.BLOCKSIZE


def is_archive(path: Path) -> bool:
    """Whether ``prepare`` can unpack it."""
    return path.name.lower().endswith(SUFFIXES)


@contextmanager
def unpacked_download(source: Path) -> Iterator[tuple[Path, list[str]]]:
    """A folder with everything of ``source``, its archives unpacked; and what of them could not be used, one line each.

    ``source`` is an archive, or a folder with archives somewhere in it. Its other files are linked, not copied.
    """
    with rules.temporary_folder(source) as temporary:
        root, problems = temporary / "source", list[str]()
        root.mkdir()
        files = [source] if source.is_file() else list_files(source)
        for path in files:
            name = path.relative_to(source if source.is_dir() else source.parent)
            target = root / name
            if is_archive(path):
                _open(path, target, name.as_posix(), problems)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(path.absolute())
        if problems and not any(path.is_file() for path in root.rglob("*")):
            raise UserError(f"{source.parent if source.is_file() else source}/{problems[0]}")
        yield root, problems


def _open(path: Path, folder: Path, name: str, problems: list[str], depth: int = 1) -> None:
    """Unpack ``path``, which is reported as ``name``, to ``folder``, and then the archives in it."""
    folder.mkdir(parents=True)
    try:
        found = _unzip(path, folder) if name.lower().endswith(".zip") else _untar(path, folder)
        problems += [f"{name}{line}" for line in found]
    except DAMAGE as err:
        problems.append(f"{name}: damaged, or not the archive its name says ({reason(err).splitlines()[0]}); download it again")
    except UserError as err:
        problems.append(str(err).replace(str(path), name))
    except OSError as err:
        raise UserError(f"{name}: cannot be unpacked to {folder} ({err.strerror}); set TMPDIR to another disk") from None
    for inner in [other for other in list_files(folder) if is_archive(other)]:
        inside = f"{name}/{inner.relative_to(folder).as_posix()}"
        if depth >= DEPTH:
            problems.append(f"{inside}: an archive in an archive in an archive; unpack it yourself and give the folder")
            continue
        aside = inner.rename(folder.parent / f".{folder.name}.inner")
        _open(aside, inner, inside, problems, depth + 1)
        aside.unlink()


def _unzip(path: Path, folder: Path) -> list[str]:
    """Unpack what can be unpacked; a line for each file that cannot, after the name of the archive."""
    problems = list[str]()
    with ZipFile(path) as archive:
        for info, name in rules.zip_files(path, archive, folder, nested=True):
            try:
                rules.write_member(archive, info, folder / name)
            except DAMAGE:
                (folder / name).unlink(missing_ok=True)
                problems.append(f"/{name}: damaged in the archive; download it again")
    return problems


def _untar(path: Path, folder: Path) -> list[str]:
    with tarfile.open(path) as archive:
        files, whole = _tar_files(path, archive)
        if not files and not whole:
            raise tarfile.ReadError("cut short before its first file")
        rules.check_amount(path, [member.size for member, _ in files], folder)
        rules.check_repeats(path, [name for _, name in files])
        done = 0
        for member, name in files:
            try:
                _write(archive, member, folder / name)
            except DAMAGE:
                (folder / name).unlink(missing_ok=True)
                whole = False
                break  # what follows cannot be found
            done += 1
    return [] if whole else [f": cut short or damaged after {done} files, which are used; download it again"]


def _tar_files(path: Path, archive: tarfile.TarFile) -> tuple[list[tuple[tarfile.TarInfo, PurePosixPath]], bool]:
    """The files of a tar that are data, up to where it ends; and whether it ends as a tar does, with a block of zeros."""
    found, total, packed = list[tuple[tarfile.TarInfo, PurePosixPath]](), 0, path.stat().st_size
    try:
        while (member := archive.next()) is not None:
            name = rules.safe_name(path, member.name)
            if member.issym() or member.islnk():
                raise UserError(f"{path}: holds the link '{member.name}'; pack the file it points to instead")
            if not member.isdir() and not member.isreg():
                raise UserError(f"{path}: holds '{member.name}', which is not a regular file; pack it again without it")
            if member.isreg() and rules.is_data(name):
                found.append((member, name))
                total += member.size
            if len(found) > rules.MAX_FILES or total > max(rules.FREE_BYTES, min(rules.MAX_BYTES, rules.MAX_RATIO * packed)):
                return found, True  # far too much already; the caller says so
        if archive.fileobj is None:
            return found, False
        archive.fileobj.seek(archive.offset)
        return found, archive.fileobj.read(BLOCK) == bytes(BLOCK)
    except DAMAGE:
        return found, False


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source = archive.extractfile(member)
    if source is None:
        raise tarfile.ReadError(member.name)
    with source, target.open("xb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
