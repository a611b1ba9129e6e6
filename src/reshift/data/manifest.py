"""Which images there are: a manifest.csv, MedIAnomaly's data.json, a known layout or a plain folder, all to a list of cases."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from os.path import normpath
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reshift.config import nearest, read_json
from reshift.data.archive import refuse_files_outside
from reshift.data.cases import SPLITS, Case
from reshift.data.layouts import detect
from reshift.data.raster import SUFFIXES as RASTER
from reshift.data.read import is_volume, list_inputs
from reshift.data.subjects import named_subjects
from reshift.errors import UserError

COLUMNS = ("image", "mask", "subject", "label", "split", "note")
OPTIONAL = ("ignore", "position")  # columns that only some data sets have


class Row(BaseModel):
    """One row of a manifest. An empty field is left out before validation and takes its default."""

    model_config = ConfigDict(frozen=True)

    image: str
    mask: str | None = None
    subject: str | None = None
    label: Literal["0", "1"] = "0"
    split: Literal["train", "val", "test"] = "train"
    note: str = ""
    ignore: str | None = None
    position: float | None = Field(None, allow_inf_nan=False)


_ROW_ERRORS = {  # what is wrong when a field of Row is not valid
    "image": "the image field is empty",
    "label": "label '{}' is neither 0 (normal) nor 1 (abnormal)",
    "split": f"split '{{}}' is not one of {', '.join(SPLITS)}",
    "position": "position '{}' is not a number; write where the slice lies, such as 12",
}


class Listing(NamedTuple):
    """The cases of a data set, the mistakes in its list, and whether it has labels (a plain folder has none)."""

    path: Path  # the list itself, or the folder
    cases: list[Case]
    mistakes: list[str]
    labelled: bool


def load_cases(data: Path, subject: str | None = None) -> list[Case]:
    """Read a data set; the first mistake is an error. ``subject`` is the regex that finds subjects in plain folders."""
    listing = _read(data, subject)
    if listing.mistakes:
        raise UserError(listing.mistakes[0])
    return check_cases(listing.cases, listing.path)


def read_cases(data: Path) -> Listing:
    """Read a data set as far as possible and collect the mistakes; only a list without any image is an error."""
    listing = _read(data, None)
    path, mistakes = listing.path, [line.replace(str(listing.path), listing.path.name, 1) for line in listing.mistakes]
    if not listing.cases:
        first = f" ({mistakes[0]})" if mistakes else ""
        raise UserError(f"{path}: lists no images{first}; give it one row per image")
    return listing._replace(mistakes=mistakes)


def _read(data: Path, subject: str | None) -> Listing:
    if not data.exists():
        raise UserError(f"{data}: no such folder or manifest")
    if not data.is_dir() and not data.is_file():  # opening a pipe could wait for ever
        raise UserError(f"{data}: is not a regular file; give a folder or a manifest")
    if data.is_dir():
        lists = [data / name for name in ("manifest.csv", "data.json") if (data / name).is_file()]
        if not lists:
            found = detect(data)
            return Listing(data, _from_folder(data, subject) if found is None else found, [], found is not None)
        data = lists[0]
    listing = Listing(data, _from_medianomaly(data), [], True) if data.suffix == ".json" else _from_csv(data)
    refuse_files_outside(data, (p for case in listing.cases for p in (case.image, case.mask, case.ignore) if p is not None))
    return listing


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
        if other.split != case.split:  # val too: thresholds from a subject that was trained on are optimistic
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
    """One file under two subjects could be in the training and in the test split."""
    count = Counter(normpath(case.image) for case in cases)
    image, times = count.most_common(1)[0]
    if times > 1:
        raise UserError(f"{source}: lists {image} {times} times; keep one of its rows")


def _refuse_shared_positions(cases: Sequence[Case], source: Path) -> None:
    """Two slices at one position belong to two stacks; it would be unclear which slices are neighbours."""
    seen: dict[tuple[str, float], Case] = {}
    for case in cases:
        if case.position is not None and (other := seen.setdefault((case.subject, case.position), case)) is not case:
            both = f"{other.name} and {case.name} of subject '{case.subject}' are both at position {case.position:g}"
            raise UserError(f"{source}: {both}; give each of a subject's stacks positions far from the others'")


def _from_csv(path: Path) -> Listing:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = list(reader.fieldnames or [])
            rows = [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as err:
        raise UserError(f"{path}: not a CSV file ({err}); save it as CSV in UTF-8, with commas") from None
    mistakes = [f"{path}: {mistake}" for mistake in _column_mistakes(names)]
    if "image" not in names:
        raise UserError(mistakes[0] if mistakes else f"{path}: has no 'image' column; a manifest has {', '.join(COLUMNS)}")
    cases = []
    for line, fields in rows:
        row = _parse_row(fields)
        if isinstance(row, Row):
            cases.append(_case(row, path.parent))
        else:
            mistakes.append(f"{path}, line {line}: {row}")
    return Listing(path, cases, mistakes, "label" in names)


def _column_mistakes(names: Sequence[str]) -> list[str]:
    known = COLUMNS + OPTIONAL
    mistakes = [f"unknown column '{name}'{nearest(name, known)}" for name in names if name not in known]
    repeated = [(name, times) for name, times in Counter(names).items() if times > 1 and name in known]
    return mistakes + [f"has the column '{name}' {times} times; keep one of them" for name, times in repeated]


def _parse_row(fields: dict[str, Any]) -> Row | str:
    """The row, or what is wrong with it."""
    if None in fields or None in fields.values():
        return "wrong number of fields; quote a field that has a comma in it"
    try:
        row = Row.model_validate({name: text for name, text in fields.items() if text})
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        return _ROW_ERRORS[str(first["loc"][0])].format(first["input"])
    by_mask = row.mask and is_volume(Path(row.image))  # its mask says which slices are abnormal
    if row.split == "test" and fields.get("label") == "" and not by_mask:
        return f"{row.image} has no label; a test image is 0 (normal) or 1 (abnormal)"
    return row


def _case(row: Row, folder: Path) -> Case:
    mask, ignore = (folder / name if name else None for name in (row.mask, row.ignore))
    subject = row.subject or row.image
    return Case(row.image, folder / row.image, mask, subject, int(row.label), row.split, row.note, ignore, None, row.position)


class _Names(BaseModel):
    """The file names of one split of a data.json, by label; "unlabeled" lists are not used."""

    normal: list[str] = Field(alias="0")
    abnormal: list[str] = Field([], alias="1")


class _TestNames(_Names):
    abnormal: list[str] = Field(alias="1")


class _DataJson(BaseModel):
    """MedIAnomaly's ``{"train": {"0": […]}, "test": {"0": […], "1": […]}}``."""

    train: _Names
    test: _TestNames


def data_caveat(data: Path) -> str | None:
    """Why results on this data must not be taken at face value: the ``caveat`` of the dataset.json that 'prepare' has written."""
    try:
        facts = read_json(((data if data.is_dir() else data.parent) / "dataset.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = facts.get("caveat") if isinstance(facts, dict) else None
    return found if isinstance(found, str) and found else None


def read_medianomaly(path: Path) -> list[tuple[str, int, str]]:
    """Return (split, label, file name) of every image that a MedIAnomaly data.json lists."""
    try:
        table = _DataJson.model_validate_json(path.read_bytes())
    except ValidationError:
        raise UserError(f"{path}: not a MedIAnomaly data.json (needs train/0, test/0 and test/1 lists)") from None
    lists = (("train", 0, table.train.normal), ("test", 0, table.test.normal), ("test", 1, table.test.abnormal))
    return [(split, label, name) for split, label, names in lists for name in names]


def _from_medianomaly(path: Path) -> list[Case]:
    """Its file names are relative to ``images/`` beside it; it has no subjects."""
    images = path.parent / "images"
    return [Case(f"images/{n}", images / n, None, n, label, split, "") for split, label, n in read_medianomaly(path)]


def _from_folder(folder: Path, subject: str | None) -> list[Case]:
    """Every image is a normal training image; its subject is what the regex finds, or what names tell, or the image itself."""
    inputs = list_inputs(folder)
    if not inputs:
        raise UserError(f"{folder}: no PNG, JPEG, TIFF, NIfTI or DICOM images in this folder")
    if shared := next((item for item in inputs if not item.path.exists()), None):
        raise UserError(f"{shared.path.parent}: holds several DICOM series; put each into a folder of its own")
    try:
        pattern = re.compile(subject) if subject else None
    except re.error as err:
        raise UserError(f"data.subject: '{subject}' is not a regular expression ({err})") from None

    def name_of(path: Path) -> str:
        return path.relative_to(folder).as_posix()

    images = [name_of(path) for path, _ in inputs if path.name.lower().endswith(RASTER)]
    named = (None if pattern else named_subjects(images)) or {}

    def subject_of(path: Path) -> str:
        found = pattern.search(path.name) if pattern else None
        if pattern and (found is None or not found.groups()):
            raise UserError(f"{path}: its name does not match data.subject '{subject}', or that has no (group)")
        return found.group(1) if found else named.get(name_of(path), name_of(path))

    return [Case(name_of(path), path, None, subject_of(path), 0, "train", "") for path, _ in inputs]
