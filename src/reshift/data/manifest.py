"""Which images there are: a plain folder, a manifest.csv, or MedIAnomaly's data.json, all to one list of cases."""

import csv
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from os.path import normpath
from pathlib import Path
from typing import Any, NamedTuple

from reshift.config import DataConfig, nearest
from reshift.data.read import is_volume, list_scans, open_volume, read_region
from reshift.errors import UserError

COLUMNS = ("image", "mask", "subject", "label", "split", "note")
OPTIONAL = ("ignore", "position")  # columns that only some data sets have
SPLITS = ("train", "val", "test")


class Case(NamedTuple):
    """One row, or one slice of a row's volume.

    ``name`` is what results are reported under: the image's path as the manifest writes it; for a slice, with ``#`` and its
    index along the file's own axis after it.
    """

    name: str
    image: Path
    mask: Path | None
    subject: str
    label: int  # 0 normal, 1 abnormal
    split: str
    note: str
    ignore: Path | None = None  # pixels that count neither as lesion nor as normal
    slice: int | None = None  # of a volume, counted from the most inferior
    position: float | None = None  # of a picture that is a slice: where it lies in its subject's stack, in slices


def load_cases(data: Path, subject: str | None = None) -> list[Case]:
    """Read ``data``. ``subject`` is a regex for plain folders; its first group names the subject."""
    if data.is_dir():
        for name, reader in (("manifest.csv", _from_csv), ("data.json", _from_medianomaly)):
            if (data / name).is_file():
                return check_cases(reader(data / name), data / name)
        from reshift.data.layouts import detect  # which is made of cases

        found = detect(data)
        return _from_folder(data, subject) if found is None else check_cases(found, data)
    if not data.exists():
        raise UserError(f"{data}: no such folder or manifest")
    reader = _from_medianomaly if data.suffix == ".json" else _from_csv
    return check_cases(reader(data), data)


def check_cases(cases: list[Case], source: Path) -> list[Case]:
    """Refuse leaks, abnormal training images and missing files."""
    if not cases:
        raise UserError(f"{source}: lists no images; give it one row per image")
    for case in cases:
        if case.label == 1 and case.split != "test":
            raise UserError(f"{source}: {case.name} is abnormal but in the {case.split} split; only normals may be learned from")
    seen: dict[str, Case] = {}
    for case in cases:
        other = seen.setdefault(case.subject, case)
        if other.split != case.split:  # val too: thresholds from a subject that was learned from are optimistic
            both = f"{other.name} ({other.split}) and {case.name} ({case.split})"
            raise UserError(
                f"{source}: subject '{case.subject}' is in two splits: {both}; that leaks, keep a subject in one split"
            )
    _refuse_repeats(cases, source)
    _refuse_shared_positions(cases, source)
    files = [path for case in cases for path in (case.image, case.mask, case.ignore) if path is not None]
    missing = [path for path in files if not path.exists()]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise UserError(f"{source}: {missing[0]} does not exist{more}; paths are relative to the manifest")
    return cases


def _refuse_repeats(cases: Sequence[Case], source: Path) -> None:
    """One file under two subjects could be learned from and tested on, unnoticed."""
    count = Counter(normpath(case.image) for case in cases)
    image, times = count.most_common(1)[0]
    if times > 1:
        raise UserError(f"{source}: lists {image} {times} times; keep one of its rows")


def _refuse_shared_positions(cases: Sequence[Case], source: Path) -> None:
    """Two slices at one place are of two scans, whose neighbours could not be told apart."""
    seen: dict[tuple[str, float], Case] = {}
    for case in cases:
        if case.position is not None and (other := seen.setdefault((case.subject, case.position), case)) is not case:
            both = f"{other.name} and {case.name} of subject '{case.subject}' are both at position {case.position:g}"
            raise UserError(f"{source}: {both}; give each of a subject's scans positions far from the others'")


def hold_out(cases: Sequence[Case], share: float, shuffle: Callable[[int], Sequence[int]]) -> tuple[list[Case], list[Case]]:
    """Split normals into (kept, held out) by subject; whole subjects are moved until ``share`` of the images are held out."""
    sizes = Counter(case.subject for case in cases)
    subjects, want, out = sorted(sizes), round(share * len(cases)), set[str]()
    for index in shuffle(len(subjects)):
        if want <= 0 or len(out) + 1 >= len(subjects):
            break
        out.add(subjects[index])
        want -= sizes[subjects[index]]
    return [c for c in cases if c.subject not in out], [c for c in cases if c.subject in out]


def deal(cases: Sequence[Case], folds: int, shuffle: Callable[[int], Sequence[int]]) -> list[int]:
    """The fold of every case, a subject's all in one: each subject goes to the fold that has the fewest images so far.

    Where there are fewer subjects than folds, each case counts as a subject.
    """
    sizes = Counter(case.subject for case in cases)
    names = [case.subject for case in cases] if len(sizes) >= folds else [str(i) for i in range(len(cases))]
    sizes, dealt, loads = Counter(names), dict[str, int](), [0] * folds
    subjects = sorted(sizes)
    for index in shuffle(len(subjects)):
        dealt[subjects[index]] = fold = loads.index(min(loads))
        loads[fold] += sizes[subjects[index]]
    return [dealt[name] for name in names]


def fingerprint(cases: Sequence[Case]) -> str:
    """Return a hash of what was learned from: names, subjects and the bytes of every file."""
    digest = hashlib.blake2b(digest_size=16)
    of = cache(file_digest)  # a volume is hashed once, not once per slice
    for case in sorted(cases, key=lambda case: case[:2]):
        digest.update(f"{case.name}\0{case.subject}\0{case.label}\0{case.split}\0".encode("utf-8", "surrogateescape"))
        for path in (case.image, case.mask, *([case.ignore] if case.ignore else [])):
            digest.update(of(path) if path else b"-")
        if case.position is not None:
            digest.update(f"{case.position}\0".encode())
    return digest.hexdigest()


def file_digest(path: Path) -> bytes:
    """A hash of a file's bytes; of a folder, which is a DICOM series, of its files' names and bytes."""
    if path.is_dir():  # a DICOM series
        parts = [
            f"{file.name}\0".encode("utf-8", "surrogateescape") + file_digest(file)
            for file in sorted(path.iterdir())
            if file.is_file()
        ]
        return hashlib.blake2b(b"".join(parts)).digest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, hashlib.blake2b).digest()


def expand(cases: Sequence[Case], config: DataConfig, errors: list[str] | None = None) -> list[Case]:
    """Replace every volume by its slices with enough foreground; with ``errors``, a volume that cannot be read is noted there.

    Where a volume has a mask, each slice's own part of it says whether it is abnormal; abnormal slices are only tested on,
    and outside the test split left out.
    """
    found: list[Case] = []
    with ThreadPoolExecutor(2) as pool:  # not more: each holds a volume and its mask
        slices = [pool.submit(_slices, case, config.min_foreground) if is_volume(case.image) else None for case in cases]
        for case, future in zip(cases, slices, strict=True):
            try:
                found += [case] if future is None else future.result()
            except UserError as err:
                if errors is None:
                    pool.shutdown(cancel_futures=True)
                    raise
                errors.append(str(err))
    return found


def _slices(case: Case, share: float) -> list[Case]:
    if case.label == 1 and case.mask is None:
        raise UserError(f"{case.image}: an abnormal volume needs a mask, which says in what slices the disease is")
    whole, volume = [], open_volume(case.image)
    for k in volume.chosen(share):
        label = int(case.mask is not None and bool(read_region(case.mask, case.image, k).any()))
        if label == 0 or case.split == "test":
            whole.append(case._replace(name=f"{case.name}#{volume.native_index(k)}", label=label, slice=k))
    return whole


def _from_folder(folder: Path, subject: str | None) -> list[Case]:
    """Every image is a normal training image; each is its own subject unless the regex says otherwise."""
    scans = list_scans(folder)
    if not scans:
        raise UserError(f"{folder}: no PNG, JPEG, TIFF, NIfTI or DICOM images in this folder")
    if shared := next((scan for scan in scans if not scan.path.exists()), None):
        raise UserError(f"{shared.path.parent}: holds several DICOM series; put each into a folder of its own")
    try:
        pattern = re.compile(subject) if subject else None
    except re.error as err:
        raise UserError(f"data.subject: '{subject}' is not a regular expression ({err})") from None

    def of(path: Path) -> str:
        found = pattern.search(path.name) if pattern else None
        if pattern and (found is None or not found.groups()):
            raise UserError(f"{path}: its name does not match data.subject '{subject}', or that has no (group)")
        return found.group(1) if found else path.relative_to(folder).as_posix()

    return [Case(path.relative_to(folder).as_posix(), path, None, of(path), 0, "train", "") for path, _ in scans]


def _from_csv(path: Path) -> list[Case]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or []
            rows = [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as err:
        raise UserError(f"{path}: not a CSV file ({err}); save it as CSV in UTF-8, with commas") from None
    for name, times in Counter(names).items():
        if name not in COLUMNS + OPTIONAL:
            raise UserError(f"{path}: unknown column '{name}'{nearest(name, COLUMNS + OPTIONAL)}")
        if times > 1:
            raise UserError(f"{path}: has the column '{name}' {times} times; keep one of them")
    if "image" not in names:
        raise UserError(f"{path}: has no 'image' column; a manifest has {', '.join(COLUMNS)}")
    return [_case(path, line, row) for line, row in rows]


def _case(path: Path, line: int, row: dict[str, Any]) -> Case:
    if None in row or any(value is None for value in row.values()):
        raise UserError(f"{path}, line {line}: wrong number of fields; quote a field that has a comma in it")
    name, label, split = row["image"], row.get("label") or "0", row.get("split") or "train"
    if not name:
        raise UserError(f"{path}, line {line}: the image field is empty")
    if label not in ("0", "1"):
        raise UserError(f"{path}, line {line}: label '{label}' is neither 0 (normal) nor 1 (abnormal)")
    if split not in SPLITS:
        raise UserError(f"{path}, line {line}: split '{split}' is not one of {', '.join(SPLITS)}")
    mask, ignore = (path.parent / row[column] if row.get(column) else None for column in ("mask", "ignore"))
    subject, note, position = row.get("subject") or name, row.get("note") or "", _position(row.get("position"), path, line)
    return Case(name, path.parent / name, mask, subject, int(label), split, note, ignore, position=position)


def _position(text: str | None, path: Path, line: int) -> float | None:
    if not text:
        return None
    try:
        position = float(text)
    except ValueError:
        position = math.nan
    if not math.isfinite(position):
        raise UserError(f"{path}, line {line}: position '{text}' is not a number; write where the slice lies, such as 12")
    return position


def _from_medianomaly(path: Path) -> list[Case]:
    """``{"train": {"0": […]}, "test": {"0": […], "1": […]}}``, file names relative to ``images/`` beside it; no subjects."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        lists = [("train", 0, table["train"]["0"]), ("test", 0, table["test"]["0"]), ("test", 1, table["test"]["1"])]
        if not all(isinstance(names, list) and all(isinstance(n, str) for n in names) for _, _, names in lists):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not a MedIAnomaly data.json (needs train/0, test/0 and test/1 lists)") from None
    images = path.parent / "images"
    return [Case(f"images/{n}", images / n, None, str(n), label, split, "") for split, label, names in lists for n in names]
