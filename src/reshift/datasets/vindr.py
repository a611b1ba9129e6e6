"""VinDr-CXR: chest X-rays as DICOM with the boxes of three radiologists, or MedIAnomaly's PNGs and ``data.json``."""

import csv
import re
from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.image import Image
from reshift.data.manifest import read_medianomaly
from reshift.datasets.plan import CaseResult, Plan, Sample, Settings, SourceCase, by_name, not_found_error, safe_name, shuffled
from reshift.datasets.samples import read_square_image, square_image
from reshift.errors import UserError

IMAGES = 15000
SPLIT = {"train normals": 4000, "test normals": 1000, "test abnormals": 1000}
TABLES = ("train.csv", "annotations_train.csv")  # Kaggle's and PhysioNet's
COLUMNS = ("image_id", "class_name", "x_min", "y_min", "x_max", "y_max")
NOTHING = "No finding"
IMAGE_ID = re.compile(r"^[0-9a-f]{32}(\.\w+)?$")
LAYOUTS = (
    "train.csv or annotations/annotations_train.csv with train/<image_id>.dicom",
    "data.json with images/<image_id>.png (MedIAnomaly, DDAD)",
)

Box = tuple[float, float, float, float]  # left, top, right, bottom in the image's own pixels


class Findings(NamedTuple):
    """What the radiologists marked in one image."""

    names: tuple[str, ...]
    boxes: tuple[Box, ...]
    fault: str = ""  # why the rows of this image cannot be used


def plan(tree: list[Path], source: Path, settings: Settings) -> Plan:
    """Choose 4000 + 1000 normals and 1000 abnormals: by ``data.json`` if there is one, else by the seed."""
    tables, problems = [path for path in tree if path.name in TABLES], list[str]()
    found = (p for p in tree if p.suffix in (".dicom", ".dcm") and p.parent.name == "train")
    dicoms = by_name(found, lambda path: path.stem, problems)
    own = _own_list([path for path in tree if path.name == "data.json"], source)
    chosen = _read_split(source / own) if own else None
    rules = [f"{settings.fit} to a square; images of more than 8 bits scaled by their own percentiles; MONOCHROME1 inverted"]
    if own is not None and chosen is not None and not dicoms:
        pngs = [p for p in tree if p.parent == own.parent / "images" and p.suffix.lower() in (".png", ".jpg", ".jpeg")]
        return _ready(chosen, pngs, source, settings, rules)
    if not tables or not dicoms:
        raise not_found_error(source, "VinDr-CXR", LAYOUTS, tree)
    known = _read_table(source / tables[0])
    chosen = chosen or _random_split(known, settings.seed, dicoms.keys())
    cases = list[SourceCase]()
    for image, (split, label) in chosen.items():
        if image not in dicoms or image not in known:
            lacks = "train/ has no such DICOM" if image not in dicoms else f"{tables[0].name} does not list it"
            problems.append(f"{image}: {lacks}")
        elif known[image].fault:
            problems.append(f"{image}: {tables[0].name}, {known[image].fault}")
        elif label != bool(known[image].names):
            problems.append(f"{image}: data.json and {tables[0].name} disagree whether it is normal")
        else:
            convert = partial(_case, source / dicoms[image], image, split, label, known[image], settings)
            cases.append(SourceCase(image, image, (dicoms[image],), convert))
    expected = [("images with labels", IMAGES, len(known)), *_expected(chosen)]
    rules += [
        "normal: no radiologist found anything; abnormal: at least one did",
        "rough masks: the union of all radiologists' boxes",
    ]
    rules += ["split: the benchmark's data.json" if own else "split: by the seed, over images, because patients are not named"]
    spare = len(dicoms.keys() - chosen.keys())
    notes = [_ROUGH, *([f"{spare} of {len(dicoms)} DICOM files are in no list of the split and are not used"] if spare else [])]
    absent = 0 if own else len(known.keys() - dicoms.keys())
    notes += [f"{absent} of {len(known)} images of {tables[0].name} have no DICOM in train/ and are not used"] if absent else []
    return Plan("DICOM and boxes", cases, expected, rules, problems, notes)


_ROUGH = "masks are boxes and include healthy tissue: pixel metrics are rough, and the paper has none here"


def _own_list(lists: list[Path], source: Path) -> Path | None:
    """VinDr's own ``data.json``, which lists images by their ids; MedIAnomaly has one for each of its data sets."""
    if not lists:
        return None
    if len(lists) > 1:
        own = [path for path in lists if _is_own(source / path)]
        which = f"{own[0].parent.as_posix()} is VinDr's" if len(own) == 1 else "give the folder of one"
        names = ", ".join(path.as_posix() for path in lists)
        raise UserError(f"{source}: holds {len(lists)} data.json ({names}); --source must hold one, {which}")
    listed = [name for _, _, name in read_medianomaly(source / lists[0])]
    if not listed:
        raise UserError(f"{source / lists[0]}: lists no images; take the benchmark's original file")
    other = next((name for name in listed if not IMAGE_ID.match(name)), None)
    if other is not None:
        raise UserError(f"{source / lists[0]}: lists '{other}', not VinDr's images, which are named by 32 hexadecimal digits")
    return lists[0]


def _is_own(path: Path) -> bool:
    """Whether the list names VinDr's images, and any at all; lists of other data sets may have another form."""
    try:
        names = [name for _, _, name in read_medianomaly(path)]
    except UserError:
        return False
    return bool(names) and all(IMAGE_ID.match(name) for name in names)


def _expected(chosen: dict[str, tuple[str, int]]) -> list[tuple[str, int, int]]:
    count = Counter(chosen.values())
    have = (count["train", 0], count["test", 0], count["test", 1])
    return [(what, want, found) for (what, want), found in zip(SPLIT.items(), have, strict=True)]


def _read_table(path: Path) -> dict[str, Findings]:
    """Image → findings. A row without a finding has no box; an image with a row that says too little is at fault alone."""
    names, boxes, faults = dict[str, set[str]](), dict[str, list[Box]](), dict[str, str]()
    for line, row in _rows(path):
        image = row["image_id"]
        found, marked = names.setdefault(image, set()), boxes.setdefault(image, [])
        if row["class_name"] == NOTHING:
            continue
        if not row["class_name"]:
            faults.setdefault(image, f"line {line}: a row without a label")
            continue
        found.add(row["class_name"])
        try:
            left, top, right, bottom = (float(row[column]) for column in COLUMNS[2:])
            boxed = left < right and top < bottom
        except (ValueError, TypeError):
            boxed = False
        if boxed:
            marked.append((left, top, right, bottom))
        else:
            faults.setdefault(image, f"line {line}: the finding '{row['class_name']}' without a box")
    return {image: Findings(tuple(sorted(found)), tuple(boxes[image]), faults.get(image, "")) for image, found in names.items()}


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """The rows of the table with their lines."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = list(reader.fieldnames or ())
            rows = [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as err:
        raise UserError(f"{path}: not a CSV file ({err}); save it as CSV in UTF-8, with commas, or download it again") from None
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise UserError(f"{path}: has no column '{missing[0]}'; a VinDr label table has {', '.join(COLUMNS)}")
    return rows


def _random_split(known: dict[str, Findings], seed: int, available: Collection[str]) -> dict[str, tuple[str, int]]:
    """At most a fifth of the normals go to the test split, so that a partial download still has training images."""
    have = {image: found for image, found in known.items() if image in available}
    normal = shuffled((image for image, found in have.items() if not found.names), seed)
    abnormal = shuffled((image for image, found in have.items() if found.names), seed)
    tested = min(SPLIT["test normals"], len(normal) // 5)
    split = dict.fromkeys(normal[:tested], ("test", 0))
    split |= dict.fromkeys(normal[tested : tested + SPLIT["train normals"]], ("train", 0))
    return split | dict.fromkeys(abnormal[: SPLIT["test abnormals"]], ("test", 1))


def _read_split(path: Path) -> dict[str, tuple[str, int]]:
    """The benchmark's split: image → (split, label)."""
    rows = [(name.rpartition(".")[0] or name, (split, label)) for split, label, name in read_medianomaly(path)]
    repeated = [name for name, count in Counter(name for name, _ in rows).items() if count > 1]
    if repeated:
        raise UserError(f"{path}: lists {repeated[0]} twice; that leaks, take the original file")
    return dict(rows)


def _ready(chosen: dict[str, tuple[str, int]], pngs: list[Path], source: Path, settings: Settings, rules: list[str]) -> Plan:
    cases, problems = list[SourceCase](), list[str]()
    files = by_name(pngs, lambda path: path.stem, problems)
    for image, (split, label) in chosen.items():
        if image not in files:
            problems.append(f"images/{image}: listed in data.json, but not there")
            continue
        key = safe_name(image)
        cases.append(SourceCase(key, key, (files[image],), partial(_image, source / files[image], key, split, label, settings)))
    spare = len(files.keys() - chosen.keys())
    notes = ["no masks: the PNGs were stretched to a square and come without boxes"]
    notes += [f"{spare} of {len(files)} PNGs are not in data.json's train/0, test/0 or test/1 and are not used"] if spare else []
    return Plan("MedIAnomaly PNGs", cases, _expected(chosen), [*rules, "split: the benchmark's data.json"], problems, notes)


def _image(path: Path, key: str, split: str, label: int, settings: Settings) -> CaseResult:
    pixels, _ = read_square_image(path, [], settings.size, settings.fit)
    return CaseResult([Sample(key, pixels, label, split)])


def _case(path: Path, key: str, split: str, label: int, found: Findings, settings: Settings) -> CaseResult:
    from reshift.data.dicom.series import read_dicom

    image = read_dicom(path)
    if not isinstance(image, Image):
        raise UserError(f"{path}: holds several frames; a chest X-ray has one")
    boxes = boxes_mask(found.boxes, image.pixels.shape[0], image.pixels.shape[1])
    pixels, mask = square_image(image, [boxes], settings.size, settings.fit)
    if label and not mask.any():
        return CaseResult([], Counter({"every box outside the crop": 1}))
    return CaseResult([Sample(key, pixels, label, split, mask if label else None, note="; ".join(found.names))])


def boxes_mask(boxes: tuple[Box, ...], height: int, width: int) -> NDArray[np.bool_]:
    """The union of boxes, ``(height, width)``; a pixel that touches a box is inside."""
    mask = np.zeros((height, width), dtype=bool)
    for left, top, right, bottom in boxes:
        rows = slice(max(0, int(np.floor(top))), max(0, int(np.ceil(bottom))))
        mask[rows, max(0, int(np.floor(left))) : max(0, int(np.ceil(right)))] = True
    return mask
