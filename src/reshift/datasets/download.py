"""A data set as downloaded: archives (.zip, .tar, .tar.gz) are unpacked to a temporary folder, which is removed afterwards.

Archives are not trusted, as in ``data.archive``: names that lead elsewhere, links, special files, encryption and absurd sizes are
refused. An archive in an archive is opened, too, because Kaggle packs the tar of BraTS once more. What is cut short or damaged is
reported and left out, and the rest is used. Results name files as ``ARCHIVE.tar/NAME``.
"""

import errno
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeGuard
from zipfile import ZipFile

from reshift.data import archive as rules
from reshift.data.files import list_files
from reshift.errors import UserError, reason

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
DEPTH = 2  # archives within archives
FULL = (errno.ENOSPC, errno.EDQUOT)
BLOCK = tarfile.BLOCKSIZE


class Unpacked(NamedTuple):
    """What a download gave."""

    folder: Path
    problems: list[str]  # one line for each thing that could not be used
    lost: set[Path]  # files that are known to be damaged or gone, relative to the folder; a line of ``problems`` tells of each


class Fault(NamedTuple):
    """What is wrong with an archive: a line that goes on from its name, and the files that it costs."""

    line: str
    lost: list[PurePosixPath]


def is_archive(path: Path) -> bool:
    """Whether ``prepare`` can unpack it."""
    return path.name.lower().endswith(SUFFIXES)


@contextmanager
def unpacked_download(source: Path) -> Iterator[Unpacked]:
    """A folder with everything of ``source``, its archives unpacked; and what of them could not be used.

    ``source`` is an archive, or a folder with archives somewhere in it. Its other files are linked, not copied.
    """
    with rules.temporary_folder(source) as temporary:
        result = Unpacked(temporary / "source", [], set())
        result.folder.mkdir()
        files = [source] if source.is_file() else list_files(source)
        for path in files:
            name = path.relative_to(source if source.is_dir() else source.parent)
            target = result.folder / name
            if is_archive(path):
                _open(path, name, result)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(path.absolute())
        if result.problems and not {path.relative_to(result.folder) for path in list_files(result.folder)} - result.lost:
            raise UserError(f"{source.parent if source.is_file() else source}/{result.problems[0]}")
        yield result


def _open(path: Path, name: Path, result: Unpacked, depth: int = 1) -> None:
    """Unpack ``path`` to the folder ``name`` of the result, and then the archives in it."""
    folder, text = result.folder / name, name.as_posix()
    folder.mkdir(parents=True)
    try:
        faults = _unzip(path, folder) if text.lower().endswith(".zip") else _untar(path, folder)
        result.problems.extend(f"{text}{fault.line}" for fault in faults)
        result.lost.update(name / file for fault in faults for file in fault.lost)
    except Exception as err:  # the readers can raise anything on damaged bytes
        result.problems.append(_refusal(err, path, folder, text))
    for inner in [other for other in list_files(folder) if is_archive(other)]:
        inside = inner.relative_to(result.folder)
        if inside in result.lost and not inner.stat().st_size:
            continue
        if depth >= DEPTH:
            line = "an archive in an archive in an archive; unpack it yourself and give the folder"
            result.problems.append(f"{inside.as_posix()}: {line}")
            continue
        aside = inner.rename(folder.parent / f".{folder.name}.inner")
        _open(aside, inside, result, depth + 1)
        aside.unlink()


def _refusal(err: Exception, path: Path, folder: Path, name: str) -> str:
    """Why an archive is refused whole, as a line; where that is not the archive's fault, the error is raised."""
    if isinstance(err, UserError):
        return str(err).replace(str(path), name)
    if isinstance(err, OSError) and err.errno in FULL:
        raise UserError(f"{name}: cannot be unpacked to {folder} ({err.strerror}); set TMPDIR to another disk") from None
    if isinstance(err, MemoryError):
        raise err
    if isinstance(err, NotImplementedError) or _is_of_system(err):
        return f"{name}: {_why(err)}"
    return f"{name}: damaged, or not the archive its name says ({reason(err).splitlines()[0]}); download it again"


def _why(err: Exception) -> str:
    """Why a file of an archive is lost, and what to do; what is no fault of the file is raised."""
    if isinstance(err, UserError | MemoryError) or (isinstance(err, OSError) and err.errno in FULL):
        raise err
    if isinstance(err, NotImplementedError):
        return f"unsupported compression or encryption ({err}); unpack the archive with another program and give its folder"
    if _is_of_system(err):  # such as a file and a folder of one name
        return f"cannot be unpacked ({err.strerror}); unpack the archive yourself, or pack it again"
    return "damaged in the archive; download it again"


def _is_of_system(err: Exception) -> TypeGuard[OSError]:
    """Whether the system has refused something; a reader's own complaint about damaged bytes has no number."""
    return isinstance(err, OSError) and err.errno is not None


def _unzip(path: Path, folder: Path) -> list[Fault]:
    """Unpack what can be unpacked; a fault for each file that cannot."""
    faults = list[Fault]()
    with ZipFile(path) as archive:
        for info, name in rules.zip_files(path, archive, folder, nested=True):
            try:
                rules.write_member(archive, info, folder / name)
            except Exception as err:  # the reader can raise anything on damaged bytes
                faults.append(Fault(f"/{name}: {_why(err)}", [name]))
                if not _is_of_system(err):
                    _leave_empty(folder / name)
    return faults


def _untar(path: Path, folder: Path) -> list[Fault]:
    with tarfile.open(path) as archive:
        files, whole = _tar_files(path, archive)
        if not files and not whole:
            raise tarfile.ReadError("cut short before its first file")
        rules.check_amount(path, [member.size for member, _ in files], folder)
        rules.check_repeats(path, [name for _, name in files])
        faults, done = list[Fault](), 0
        for number, (member, name) in enumerate(files):
            try:
                _write(archive, member, folder / name)
            except Exception as err:
                why = _why(err)
                if not _is_of_system(err):  # what follows cannot be found
                    return [*faults, _cut(folder, done, [file for _, file in files[number:]])]
                faults.append(Fault(f"/{name}: {why}", [name]))
            else:
                done += 1
    if whole:
        return faults
    last = files[-1][1]  # more files of its case may have followed
    but = f"except the case of the last, {last}, which may lack a file"
    return [*faults, Fault(f": cut short or damaged after {done} files, which are used, {but}; download it again", [last])]


def _cut(folder: Path, done: int, lost: list[PurePosixPath]) -> Fault:
    """What a tar has lost that ends within a file."""
    for name in lost:
        _leave_empty(folder / name)
    return Fault(f": cut short or damaged in {lost[0]}, after {done} files, which are used; download it again", lost)


def _leave_empty(target: Path) -> None:
    """An empty file in the place of a lost one tells the plan what a case should have, so that it takes nothing else for it."""
    with suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"")


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
    except Exception as err:  # the reader can raise anything on damaged bytes
        _why(err)
        return found, False


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source = archive.extractfile(member)
    if source is None:
        raise tarfile.ReadError(member.name)
    with source, target.open("xb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
