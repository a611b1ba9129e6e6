"""Which images there are: a plain folder, a manifest.csv, or MedIAnomaly's data.json, all to one list of cases."""

import csv
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from os.path import normpath
from pathlib import Path
from typing import Any, NamedTuple

from reshift.config import nearest
from reshift.data.read import list_images
from reshift.errors import UserError

COLUMNS = ("image", "mask", "subject", "label", "split", "note")
SPLITS = ("train", "val", "test")


class Case(NamedTuple):
    """One row. ``name`` is the image's path as the manifest writes it, which is what results are reported under."""

    name: str
    image: Path
    mask: Path | None
    subject: str
    label: int  # 0 normal, 1 abnormal
    split: str
    note: str


def load_cases(data: Path, subject: str | None = None) -> list[Case]:
    """Read ``data``. ``subject`` is a regex for plain folders; its first group names the subject."""
    if data.is_dir():
        for name, reader in (("manifest.csv", _from_csv), ("data.json", _from_medianomaly)):
            if (data / name).is_file():
                return check_cases(reader(data / name), data / name)
        return _from_folder(data, subject)
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
    files = [path for case in cases for path in (case.image, case.mask) if path is not None]
    missing = [path for path in files if not path.is_file()]
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


def fingerprint(cases: Sequence[Case]) -> str:
    """Return a hash of what was learned from: names, subjects and the bytes of every file."""
    digest = hashlib.blake2b(digest_size=16)
    for case in sorted(cases):
        digest.update(f"{case.name}\0{case.subject}\0{case.label}\0{case.split}\0".encode("utf-8", "surrogateescape"))
        for path in (case.image, case.mask):
            digest.update(hashlib.blake2b(path.read_bytes()).digest() if path else b"-")
    return digest.hexdigest()


def _from_folder(folder: Path, subject: str | None) -> list[Case]:
    """Every image is a normal training image; each is its own subject unless the regex says otherwise."""
    files = list_images(folder)
    if not files:
        raise UserError(f"{folder}: no PNG, JPEG or TIFF images in this folder")
    try:
        pattern = re.compile(subject) if subject else None
    except re.error as err:
        raise UserError(f"data.subject: '{subject}' is not a regular expression ({err})") from None

    def of(path: Path) -> str:
        found = pattern.search(path.name) if pattern else None
        if pattern and (found is None or not found.groups()):
            raise UserError(f"{path}: its name does not match data.subject '{subject}', or that has no (group)")
        return found.group(1) if found else path.relative_to(folder).as_posix()

    return [Case(path.relative_to(folder).as_posix(), path, None, of(path), 0, "train", "") for path in files]


def _from_csv(path: Path) -> list[Case]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or []
            rows = [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as err:
        raise UserError(f"{path}: not a CSV file ({err}); save it as CSV in UTF-8, with commas") from None
    for name, times in Counter(names).items():
        if name not in COLUMNS:
            raise UserError(f"{path}: unknown column '{name}'{nearest(name, COLUMNS)}")
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
    mask = path.parent / row["mask"] if row.get("mask") else None
    return Case(name, path.parent / name, mask, row.get("subject") or name, int(label), split, row.get("note") or "")


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
