"""A zipped folder where a folder is expected: unpacked to a temporary folder that is gone afterwards.

An archive is somebody else's bytes. Nothing is written before all of its table of contents has been looked at, and nothing
outside the temporary folder ever. Refused, in one line each: names that lead out of the folder, links, encrypted files,
archives within archives, repeated names, and more than is sensible: ``MAX_FILES`` files, ``MAX_BYTES`` unpacked, or over
``MAX_RATIO`` times the size of the archive (up to ``FREE_BYTES`` are taken at any ratio: an empty mask packs to nothing).
"""

import hashlib
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
def opened(path: Path) -> Iterator[Path]:
    """Yield a folder for a zip file, and anything else as it is; what was unpacked is removed on the way out."""
    if not path.is_file() or not _is_archive(path.name):
        yield path
        return
    if path.suffix.lower() != ".zip":
        raise UserError(f"{path}: only .zip archives are opened; unpack this one and give its folder")
    above = _room(path)
    folder = above / path.stem  # results are named after it
    try:
        folder.mkdir()
        _unpack(path, folder)
        yield _only_child(folder)
    finally:
        shutil.rmtree(above, ignore_errors=True)


def _room(path: Path) -> Path:
    """A temporary folder, the same for the same archive, so that a run that continues finds its images under their old names."""
    about = path.stat()
    digest = hashlib.sha256(
        f"{path.resolve()}\0{about.st_size}\0{about.st_mtime_ns}".encode("utf-8", "surrogateescape")
    ).hexdigest()
    room = Path(tempfile.gettempdir()) / f"reshift-{digest[:16]}"
    try:
        room.mkdir(mode=0o700)
    except FileExistsError:  # another run has it open, or left it when it was killed
        return Path(tempfile.mkdtemp(prefix="reshift-"))
    return room


def _is_archive(name: str) -> bool:
    """``.nii.gz`` is an image; other ``.gz`` files are archives or nothing we know."""
    return name.lower().endswith(ARCHIVES) and not name.lower().endswith(".nii.gz")


def _only_child(folder: Path) -> Path:
    """Most archives hold one folder, and everything in it."""
    children = list(folder.iterdir())
    return children[0] if len(children) == 1 and children[0].is_dir() else folder


def _unpack(path: Path, folder: Path) -> None:
    try:
        with ZipFile(path) as archive:
            wanted = [(info, _safe_name(path, info)) for info in archive.infolist()]
            files = [(info, name) for info, name in wanted if not info.is_dir() and not set(name.parts) & set(_NOT_DATA)]
            _check_amount(path, [info for info, _ in files], folder)
            _check_repeats(path, [name for _, name in files])
            for info, name in files:
                _write(archive, info, folder / name)
    except UserError:
        raise
    except OSError as err:
        reason = err.strerror or str(err)
        raise UserError(f"{path}: cannot be unpacked to {folder.parent} ({reason}); unpack it and give its folder") from None
    except Exception as err:  # damaged bytes make the reader raise about anything, and none of it is our mistake
        raise UserError(f"{path}: not a zip file we can read, or damaged ({err}); pack or copy it again") from None


def _write(archive: ZipFile, info: ZipInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(info) as source, target.open("xb") as file:  # stops at the size its entry claims, and checks its CRC
        shutil.copyfileobj(source, file, 1 << 20)


def _safe_name(path: Path, info: ZipInfo) -> PurePosixPath:
    """The entry's name, if nothing is wrong with the entry."""
    name = PurePosixPath(info.filename.replace("\\", "/"))  # some Windows programs write backslashes
    if name.is_absolute() or ".." in name.parts or ":" in (name.parts or ("",))[0]:
        raise UserError(f"{path}: holds '{info.filename}', a name that leads out of the folder; refused, pack it again")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        raise UserError(f"{path}: holds the link '{info.filename}'; pack the file it points to instead")
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise UserError(f"{path}: holds '{info.filename}', which is no plain file; pack it again without it")
    if info.flag_bits & 1:
        raise UserError(f"{path}: '{info.filename}' is encrypted; unpack it yourself and give its folder")
    if not info.is_dir() and _is_archive(name.name):
        raise UserError(f"{path}: holds another archive, '{info.filename}'; unpack both yourself and give the folder")
    return name


def _check_amount(path: Path, files: list[ZipInfo], folder: Path) -> None:
    if not files:
        raise UserError(f"{path}: holds no files; pack a folder of images")
    if len(files) > MAX_FILES:
        raise UserError(f"{path}: holds {len(files):,} files, over the limit of {MAX_FILES:,}; unpack it and give its folder")
    total, packed = sum(info.file_size for info in files), path.stat().st_size
    if total > MAX_BYTES:
        raise UserError(f"{path}: unpacks to {_giga(total)}, over the limit of {_giga(MAX_BYTES)}; unpack it and give its folder")
    if total > FREE_BYTES and total > MAX_RATIO * packed:
        raise UserError(
            f"{path}: unpacks to {total / packed:,.0f} times its size, over the limit of {MAX_RATIO}; that is no set of images"
        )
    free = shutil.disk_usage(folder).free
    if total > free:
        raise UserError(f"{path}: unpacks to {_giga(total)}, but {folder.parent} has {_giga(free)} left; set TMPDIR or make room")


def _check_repeats(path: Path, names: list[PurePosixPath]) -> None:
    seen = set[str]()
    for name in names:
        if str(name) in seen:
            raise UserError(f"{path}: holds '{name}' twice; pack it again with one of them")
        seen.add(str(name))


def _giga(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
