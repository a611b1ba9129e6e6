"""Read a data set as far as it goes: what ``load_cases`` would refuse at the first mistake, here all mistakes are collected."""

import csv
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from reshift.config import nearest
from reshift.data.layouts import detect
from reshift.data.manifest import COLUMNS, OPTIONAL, Case, _case, _from_folder, _from_medianomaly
from reshift.errors import UserError


class Reading(NamedTuple):
    """The cases that could be made out, what is wrong with the list itself, and whether it says what is normal."""

    cases: list[Case]
    mistakes: list[str]
    labelled: bool


def read_cases(data: Path) -> Reading:
    """Read a folder, a manifest or a data.json; only what leaves no image at all to look at is refused."""
    if not data.exists():
        raise UserError(f"{data}: no such folder or manifest")
    if data.is_dir():
        for name in ("manifest.csv", "data.json"):
            if (data / name).is_file():
                return read_cases(data / name)
        found = detect(data)
        return Reading(_from_folder(data, None), [], False) if found is None else Reading(found, [], True)
    if data.suffix == ".json":
        return _some(Reading(_from_medianomaly(data), [], True), data)
    return _some(_rows(data), data)


def _some(reading: Reading, path: Path) -> Reading:
    if not reading.cases:
        first = f" ({reading.mistakes[0]})" if reading.mistakes else ""
        raise UserError(f"{path}: lists no images{first}; give it one row per image")
    return reading


def _rows(path: Path) -> Reading:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = list(reader.fieldnames or [])
            rows = [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as err:
        raise UserError(f"{path}: not a CSV file ({err}); save it as CSV in UTF-8, with commas") from None
    if "image" not in names:
        raise UserError(f"{path}: has no 'image' column; a manifest has {', '.join(COLUMNS)}")
    known = COLUMNS + OPTIONAL
    mistakes = [f"{path.name}: unknown column '{name}'{nearest(name, known)}" for name in names if name not in known]
    mistakes += [f"{path.name}: has the column '{name}' {n} times" for name, n in Counter(names).items() if n > 1]
    cases = []
    for line, row in rows:
        try:
            cases.append(_case(path, line, row))
        except UserError as err:
            mistakes.append(str(err).replace(str(path), path.name, 1))
    return Reading(cases, mistakes, "label" in names)
