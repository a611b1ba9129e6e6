"""Accept a zip file where a folder is expected: unpack it to a temporary folder that is removed afterwards.

An archive is not trusted. Its whole table of contents is checked before anything is written, and nothing is written outside
the temporary folder. Refused, in one line each: names that lead out of the folder, links, encrypted files, archives within
archives, repeated names, more than ``MAX_FILES`` files or ``MAX_BYTES`` unpacked, and more than ``MAX_RATIO`` times the size
of the archive (below ``FREE_BYTES`` any ratio is allowed: empty masks compress to almost nothing).

The unpacked images may be of patients: only their owner can enter the temporary folder, and one that a killed process has left
behind is removed as soon as another archive is opened. What is reported of a file in it names the archive: ``a.zip!b/c.png``.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path, PurePosixPath
from zipfile import ZipFile, ZipInfo

from reshift.errors import UserError

MAX_FILES = 1_000_000
MAX_BYTES = 200 * 2**30
MAX_RATIO = 100
FREE_BYTES = 100 * 2**20
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".zst")
_NOT_DATA = ("__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini")


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield the unpacked folder of a zip file, removed at the end; any other path is yielded as it is."""
    if not path.is_file() or not _is_archive(path.name):
        yield path
        return
    if path.suffix.lower() != ".zip":
        raise UserError(f"{path}: only .zip archives are opened; unpack this one and give its folder")
    with temporary_folder(path) as temporary:
        folder = temporary / path.stem  # results are named after it
        _archives[f"{folder}/"] = f"{path}!"
        folder.mkdir()
        _unpack(path, folder)
        yield _only_child(folder)


def unpack_into(path: Path, folder: Path, max_files: int, max_bytes: int) -> None:
    """Unpack a zip file that somebody sent to a folder that stays, under the same rules and within closer limits."""
    try:
        with ZipFile(path) as archive:
            sizes = [info.file_size for info in archive.infolist() if not info.is_dir()]
    except Exception as err:
        raise UserError(f"{path}: not a zip file we can read, or damaged ({err}); pack or copy it again") from None
    if len(sizes) > max_files:
        raise UserError(f"{path}: holds {len(sizes):,} files, over the limit of {max_files:,}; send fewer at a time")
    if sum(sizes) > max_bytes:
        raise UserError(f"{path}: unpacks to {_giga(sum(sizes))}, over the limit of {_giga(max_bytes)}; send fewer at a time")
    folder.mkdir()
    _unpack(path, folder)


_archives: dict[str, str] = {}  # from the start of a file's path in a temporary folder to the start of the name it is reported by


def archive_names(text: str) -> str:
    """Replace the paths of unpacked files in ``text`` by ``ARCHIVE.zip!NAME``, which is the same in every run."""
    for folder, archive in _archives.items():
        text = text.replace(folder, archive).replace(folder.rstrip("/"), archive.rstrip("!"))
    return text


def refuse_files_outside(data: Path, files: Iterable[Path]) -> None:
    """A list of images that came in an archive may only name files of that archive."""
    home = next((folder for folder in _archives if f"{_full(data)}/".startswith(folder)), None)
    outside = next((path for path in files if not _full(path).startswith(home)), None) if home else None
    if outside is not None:
        raise UserError(f"{data}: lists {outside}, which is not in the archive; pack it as well, or unpack the archive yourself")


def _full(path: Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100 (links are kept as they are: an archive holds none)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A folder of our own for what ``path`` holds, locked while it is in use and removed afterwards."""
    parent, prefix = Path(tempfile.gettempdir()).absolute(), f"reshift-zip-{os.getuid()}-"
    for left in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            _remove_unused(left)
    name = prefix + hashlib.sha256(_full(path).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    try:
        folder, handle = _new_folder(parent / name)
    except OSError as err:
        raise UserError(f"{path}: cannot be unpacked to {parent} ({err.strerror}); set TMPDIR to another disk") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _new_folder(base: Path) -> tuple[Path, int]:
    """The first of ``base-1``, ``base-2``, … that no other process has, locked."""
    for number in count(1):
        folder = base.with_name(f"{base.name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            if (handle := _lock(folder)) is not None:
                return folder, handle
    raise AssertionError  # count has no end


def _remove_unused(folder: Path) -> None:
    """Remove a folder that a killed process has left behind."""
    if (handle := _lock(folder)) is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _lock(folder: Path) -> int | None:
    """Lock a folder of ours until the handle is closed or the process ends; None where another process uses or removes it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        about = os.fstat(handle)
        if about.st_uid == os.getuid() and os.path.samestat(about, os.lstat(folder)):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _is_archive(name: str) -> bool:
    """``.nii.gz`` is an image; any other ``.gz`` file is an archive or unknown."""
    return name.lower().endswith(ARCHIVES) and not name.lower().endswith(".nii.gz")


def _only_child(folder: Path) -> Path:
    """Most archives hold one folder with everything in it."""
    children = list(folder.iterdir())
    return children[0] if len(children) == 1 and children[0].is_dir() else folder


def _unpack(path: Path, folder: Path) -> None:
    try:
        with ZipFile(path) as archive:
            for info, name in zip_files(path, archive, folder):
                write_member(archive, info, folder / name)
    except UserError:
        raise
    except OSError as err:
        reason = err.strerror or str(err)
        raise UserError(f"{path}: cannot be unpacked to {folder.parent} ({reason}); unpack it and give its folder") from None
    except Exception as err:  # the reader can raise anything on damaged bytes
        raise UserError(f"{path}: not a zip file we can read, or damaged ({err}); pack or copy it again") from None


def zip_files(path: Path, archive: ZipFile, folder: Path, *, nested: bool = False) -> list[tuple[ZipInfo, PurePosixPath]]:
    """The files of a zip file that are data, with safe names; ``nested``: archives in it are allowed, and stay packed."""
    wanted = [(info, _zip_name(path, info, nested=nested)) for info in archive.infolist()]
    files = [(info, name) for info, name in wanted if not info.is_dir() and is_data(name)]
    check_amount(path, [info.file_size for info, _ in files], folder)
    check_repeats(path, [name for _, name in files])
    return files


def write_member(archive: ZipFile, info: ZipInfo, target: Path) -> None:
    """Unpack one file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(info) as source, target.open("xb") as file:  # stops at the claimed size, and checks the CRC
        shutil.copyfileobj(source, file, 1 << 20)


def is_data(name: PurePosixPath) -> bool:
    """Whether a file is not one that an operating system has left in the archive."""
    return not set(name.parts) & set(_NOT_DATA)


def safe_name(path: Path, text: str) -> PurePosixPath:
    """The name of an entry of the archive ``path``; one that leads elsewhere is refused."""
    name = PurePosixPath(text.replace("\\", "/"))  # some Windows programs write backslashes
    if name.is_absolute() or ".." in name.parts or ":" in (name.parts or ("",))[0]:
        raise UserError(f"{path}: holds '{text}', a name that leads out of the folder; refused, pack it again")
    return name


def _zip_name(path: Path, info: ZipInfo, *, nested: bool) -> PurePosixPath:
    """The entry's name; an unsafe entry is refused."""
    name = safe_name(path, info.filename)
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise UserError(f"{path}: holds the link '{info.filename}'; pack the file it points to instead")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise UserError(f"{path}: holds '{info.filename}', which is not a regular file; pack it again without it")
    if info.flag_bits & 1:
        raise UserError(f"{path}: '{info.filename}' is encrypted; unpack it yourself and give its folder")
    if not nested and not info.is_dir() and _is_archive(name.name):
        raise UserError(f"{path}: holds another archive, '{info.filename}'; unpack both yourself and give the folder")
    return name


def check_amount(path: Path, sizes: list[int], folder: Path) -> None:
    """Refuse an archive that unpacks to too much; ``sizes`` are those of its files."""
    if not sizes:
        raise UserError(f"{path}: holds no files; pack a folder of images")
    if len(sizes) > MAX_FILES:
        raise UserError(f"{path}: holds {len(sizes):,} files, over the limit of {MAX_FILES:,}; unpack it and give its folder")
    total, packed = sum(sizes), path.stat().st_size
    if total > MAX_BYTES:
        raise UserError(f"{path}: unpacks to {_giga(total)}, over the limit of {_giga(MAX_BYTES)}; unpack it and give its folder")
    if total > FREE_BYTES and total > MAX_RATIO * packed:
        raise UserError(
            f"{path}: unpacks to {total / packed:,.0f} times its size, over the limit of {MAX_RATIO}; that is not a set of images"
        )
    free = shutil.disk_usage(folder).free
    if total > free:
        raise UserError(
            f"{path}: unpacks to {_giga(total)}, but {folder.parent} has {_giga(free)} free; set TMPDIR to another disk"
        )


def check_repeats(path: Path, names: list[PurePosixPath]) -> None:
    """Refuse an archive that holds a file twice."""
    seen = set[str]()
    for name in names:
        if str(name) in seen:
            raise UserError(f"{path}: holds '{name}' twice; pack it again with one of them")
        seen.add(str(name))


def _giga(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
