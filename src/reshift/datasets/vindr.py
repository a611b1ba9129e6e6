"""VinDr-CXR: chest X-rays as DICOM with the boxes of three radiologists, or MedIAnomaly's PNGs and ``data.json``."""

import csv
import json
from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reshift.data.image import Image
from reshift.datasets.build import Job, Made, Plan, Sample, Settings, drawn, not_found, safe
from reshift.datasets.slices import picture, read_picture
from reshift.errors import UserError

IMAGES = 15000
SPLIT = {"train normals": 4000, "test normals": 1000, "test abnormals": 1000}
TABLES = ("train.csv", "annotations_train.csv")  # Kaggle's and PhysioNet's
COLUMNS = ("image_id", "class_name", "x_min", "y_min", "x_max", "y_max")
NOTHING = "No finding"
LAYOUTS = (
    "train.csv or annotations/annotations_train.csv with train/<image_id>.dicom",
    "data.json with images/<image_id>.png (MedIAnomaly, DDAD)",
)

Box = tuple[float, float, float, float]  # left, top, right, bottom in the image's own pixels


class Findings(NamedTuple):
    """What the readers marked in one image."""

    names: tuple[str, ...]
    boxes: tuple[Box, ...]


def plan(tree: list[Path], source: Path, settings: Settings) -> Plan:
    """Choose 4000 + 1000 normals and 1000 abnormals: by ``data.json`` where there is one, else by the seed."""
    tables = [path for path in tree if path.name in TABLES]
    lists = [path for path in tree if path.name == "data.json"]
    scans = {p.stem: p for p in tree if p.suffix in (".dicom", ".dcm") and p.parent.name == "train"}
    pictures = {p.name: p for p in tree if p.parent.name == "images" and p.suffix.lower() in (".png", ".jpg", ".jpeg")}
    chosen = _listed(source / lists[0]) if lists else None
    rules = [f"{settings.fit} to a square; images of more than 8 bits scaled by their own percentiles; MONOCHROME1 inverted"]
    if chosen is not None and pictures and not scans:
        return _ready(chosen, pictures, source, settings, rules)
    if not tables or not scans:
        raise not_found(source, "VinDr-CXR", LAYOUTS, tree)
    known = _read_table(source / tables[0])
    chosen = chosen or _drawn_split(known, settings.seed, scans.keys())
    jobs, problems = list[Job](), list[str]()
    for image, (split, label) in chosen.items():
        if image not in scans or image not in known:
            lacks = "train/ has no such DICOM" if image not in scans else f"{tables[0].name} does not list it"
            problems.append(f"{image}: {lacks}")
        elif label != bool(known[image].names):
            problems.append(f"{image}: {lists[0].name} and {tables[0].name} disagree on whether it is normal")
        else:
            make = partial(_case, source / scans[image], image, split, label, known[image], settings)
            jobs.append(Job(image, image, (scans[image],), make))
    expected = [("images with labels", IMAGES, len(known)), *_expected(chosen)]
    rules += ["normal: no reader found anything; abnormal: any did", "rough masks: the union of all readers' boxes"]
    rules += ["split: the benchmark's data.json" if lists else "split: drawn by the seed from images, since no patient is named"]
    return Plan("DICOM and boxes", jobs, expected, rules, problems, [_ROUGH])


_ROUGH = "masks are boxes and include healthy tissue: read pixel figures as rough; the paper gives none here"


def _expected(chosen: dict[str, tuple[str, int]]) -> list[tuple[str, int, int]]:
    count = Counter(chosen.values())
    have = (count["train", 0], count["test", 0], count["test", 1])
    return [(what, want, found) for (what, want), found in zip(SPLIT.items(), have, strict=True)]


def _read_table(path: Path) -> dict[str, Findings]:
    """Image → findings; a row's box is empty when its reader saw nothing."""
    names, boxes = dict[str, set[str]](), dict[str, list[Box]]()
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            raise UserError(f"{path}: has no column '{missing[0]}'; a VinDr label table has {', '.join(COLUMNS)}")
        for row in reader:
            image = row["image_id"]
            mine, marked = names.setdefault(image, set()), boxes.setdefault(image, [])
            if row["class_name"] == NOTHING:
                continue
            mine.add(row["class_name"])
            try:
                left, top, right, bottom = (float(row[column]) for column in COLUMNS[2:])
            except ValueError:
                raise UserError(f"{path}, line {reader.line_num}: a finding without a box; is the table complete?") from None
            marked.append((left, top, right, bottom))
    return {image: Findings(tuple(sorted(found)), tuple(boxes[image])) for image, found in names.items()}


def _drawn_split(known: dict[str, Findings], seed: int, there: Collection[str]) -> dict[str, tuple[str, int]]:
    """A fifth of the normals at most is tested on, so that a part of the download still has images to learn from."""
    have = {image: found for image, found in known.items() if image in there}
    normal = drawn((image for image, found in have.items() if not found.names), seed)
    abnormal = drawn((image for image, found in have.items() if found.names), seed)
    tested = min(SPLIT["test normals"], len(normal) // 5)
    split = dict.fromkeys(normal[:tested], ("test", 0))
    split |= dict.fromkeys(normal[tested : tested + SPLIT["train normals"]], ("train", 0))
    return split | dict.fromkeys(abnormal[: SPLIT["test abnormals"]], ("test", 1))


def _listed(path: Path) -> dict[str, tuple[str, int]]:
    """The benchmark's split; its "unlabeled" lists are not used."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        lists = ((("train", 0), table["train"]["0"]), (("test", 0), table["test"]["0"]), (("test", 1), table["test"]["1"]))
        rows = [(str(name).rpartition(".")[0] or str(name), place) for place, names in lists for name in names]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not a MedIAnomaly data.json (needs train/0, test/0 and test/1 lists)") from None
    repeated = [name for name, count in Counter(name for name, _ in rows).items() if count > 1]
    if repeated:
        raise UserError(f"{path}: lists {repeated[0]} twice; that leaks, take the original file")
    return dict(rows)


def _ready(
    chosen: dict[str, tuple[str, int]], pictures: dict[str, Path], source: Path, settings: Settings, rules: list[str]
) -> Plan:
    jobs, problems, files = list[Job](), list[str](), {Path(name).stem: path for name, path in pictures.items()}
    for image, (split, label) in chosen.items():
        if image not in files:
            problems.append(f"images/{image}: listed in data.json, but not there")
            continue
        key = safe(image)
        jobs.append(Job(key, key, (files[image],), partial(_picture, source / files[image], key, split, label, settings)))
    notes = ["no masks: the PNGs were stretched to a square, and the boxes are not among them"]
    return Plan("MedIAnomaly PNGs", jobs, _expected(chosen), [*rules, "split: the benchmark's data.json"], problems, notes)


def _picture(path: Path, key: str, split: str, label: int, settings: Settings) -> Made:
    pixels, _ = read_picture(path, [], settings.size, settings.fit)
    return Made([Sample(key, pixels, label, split)])


def _case(path: Path, key: str, split: str, label: int, found: Findings, settings: Settings) -> Made:
    from reshift.data.dicom.series import read_dicom

    image = read_dicom(path)
    if not isinstance(image, Image):
        raise UserError(f"{path}: holds several frames; a chest X-ray has one")
    boxes = boxes_mask(found.boxes, image.pixels.shape[0], image.pixels.shape[1])
    pixels, mask = picture(image, [boxes], settings.size, settings.fit)
    if label and not mask.any():
        return Made([], Counter({"every box outside the crop": 1}))
    return Made([Sample(key, pixels, label, split, mask if label else None, note="; ".join(found.names))])


def boxes_mask(boxes: tuple[Box, ...], height: int, width: int) -> NDArray[np.bool_]:
    """The union of boxes, ``(height, width)``; a pixel that a box touches is inside."""
    mask = np.zeros((height, width), dtype=bool)
    for left, top, right, bottom in boxes:
        rows = slice(max(0, int(np.floor(top))), max(0, int(np.ceil(bottom))))
        mask[rows, max(0, int(np.floor(left))) : max(0, int(np.ceil(right)))] = True
    return mask
