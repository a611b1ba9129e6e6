"""Folders whose names say what is what: MVTec's train/good and test/<defect>, and BIDS's sub-*/anat.

``detect`` answers None for any other folder. What a layout leaves open is refused in one line, never guessed.
"""

import csv
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from reshift.data.manifest import SPLITS, Case
from reshift.data.read import list_images
from reshift.errors import UserError

NORMAL = ("good", "normal", "healthy")  # names of a class folder of normal images, in any case
_SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_IMAGES, _MASKS = ("img", "image", "images"), ("label", "labels", "mask", "masks", "anomaly_mask")
_TRUTH = ("ground_truth", "groundtruth")

CONTRASTS = ("T1w", "T2w", "FLAIR", "PDw", "T2starw", "CT")
GROUPS = ("group", "diagnosis", "label")
_HEALTHY = ("control", "controls", "healthy", "healthy control", "hc", "normal", "0")
_ILL = ("patient", "patients", "case", "cases", "abnormal", "1")
_NIFTI = (".nii.gz", ".nii")


def detect(folder: Path) -> list[Case] | None:
    """Return the cases of a folder in a known layout, or None. They are not checked yet: give them to ``check_cases``."""
    children = _folders(folder)
    if any(_is_bids_subject(path) for path in children):
        return _bids(folder, children)
    if _is_mvtec(children):
        return _mvtec(folder, children)
    several = [path.name for path in children[:50] if _is_mvtec(_folders(path))]
    if len(several) > 1:
        raise UserError(f"{folder}: holds {len(several)} data sets ({', '.join(several[:3])}, …); give the folder of one of them")
    return None


def _folders(folder: Path) -> list[Path]:
    """Sub-folders by name; hidden ones are passed over."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if not entry.name.startswith(".") and entry.is_dir())
    except OSError as err:
        raise UserError(f"{folder}: cannot be listed ({err.strerror}); make it readable, or move it away") from None


def _is_mvtec(children: Sequence[Path]) -> bool:
    """Whether a train, val or test folder has a class folder of normal images."""
    splits = [path for path in children if path.name.lower() in _SPLITS]
    return any(path.name.lower() in NORMAL for split in splits for path in _folders(split))


def _mvtec(folder: Path, children: Sequence[Path]) -> list[Case]:
    truth = {kind.name.lower(): kind for path in children if path.name.lower() in _TRUTH for kind in _folders(path)}
    tested = {kind.name.lower() for path in children if path.name.lower() == "test" for kind in _folders(path)}
    if set(truth) - tested:
        stray = truth[min(set(truth) - tested)]
        raise UserError(f"{stray}: there is no test/{stray.name} that these masks could belong to; rename one of them")
    cases: list[Case] = []
    for split in children:
        if split.name.lower() not in _SPLITS:
            continue
        classes = _folders(split)
        inside = {path for kind in classes for path in list_images(kind)}
        loose = [path for path in list_images(split) if path not in inside]
        if loose:
            raise UserError(f"{loose[0]}: lies beside the class folders; move it into {split.name}/good or {split.name}/<defect>")
        for kind in classes:
            cases += _class(folder, split, kind, truth)
    return cases


def _class(folder: Path, split: Path, kind: Path, truth: dict[str, Path]) -> list[Case]:
    """The images of one class folder: directly in it, or in ``img/`` with masks in ``label/`` beside them."""
    normal = kind.name.lower() in NORMAL
    inner = {path.name.lower(): path for path in _folders(kind)}
    images = next((inner[name] for name in _IMAGES if name in inner), None)
    masks = next((inner[name] for name in _MASKS if name in inner), None)
    if masks is not None and images is None:
        raise UserError(f"{masks}: masks lie within their class folder; put the images into {kind.name}/img beside them")
    if masks is None and split.name.lower() == "test":
        masks = truth.get(kind.name.lower())
    root = images or kind
    files = list_images(root)
    matched = _match_masks(files, root, masks) if masks else {}
    return [
        Case(
            name=path.relative_to(folder).as_posix(),
            image=path,
            mask=matched.get(path),
            subject=path.relative_to(folder).as_posix(),
            label=0 if normal else 1,
            split=_SPLITS[split.name.lower()],
            note="" if normal else kind.name,
        )
        for path in files
    ]


def _match_masks(images: Sequence[Path], root: Path, masks: Path) -> dict[Path, Path]:
    """Image → mask. A mask has its image's name, with or without ``_mask``, whatever the suffix."""
    by_stem: dict[str, Path] = {}
    for image in images:
        stem = _stem(image, root)
        if stem in by_stem:
            raise UserError(f"{image}: {by_stem[stem].name} has the same name but for the suffix; rename one")
        by_stem[stem] = image
    found: dict[Path, Path] = {}
    for mask in list_images(masks):
        stem = _stem(mask, masks)
        of = by_stem.get(stem) or by_stem.get(stem.removesuffix("_mask"))
        if of is None:
            raise UserError(f"{mask}: matches no image in {root}; a mask has its image's name, with or without _mask")
        if of in found:
            raise UserError(f"{mask}: {found[of].name} is a mask of the same image; keep one of them")
        found[of] = mask
    return found


def _stem(path: Path, root: Path) -> str:
    name = path.relative_to(root).as_posix()
    suffix = next((end for end in _NIFTI if name.lower().endswith(end)), path.suffix)
    return name[: len(name) - len(suffix)]


def _is_bids_subject(path: Path) -> bool:
    if not path.name.startswith("sub-"):
        return False
    return (path / "anat").is_dir() or any((path / s.name / "anat").is_dir() for s in _folders(path) if s.name.startswith("ses-"))


class _Scan(NamedTuple):
    """A NIfTI file of a BIDS folder."""

    path: Path
    subject: str  # sub-01
    session: str  # ses-1 or ""
    stem: str


def _bids(folder: Path, children: Sequence[Path]) -> list[Case]:
    subjects = [path for path in children if path.name.startswith("sub-")]
    beside = [scan for subject in subjects for scan in _scans(subject)]
    images = [scan for scan in beside if scan.stem.rsplit("_", 1)[-1] in CONTRASTS and not _is_mask(scan)]
    kinds = Counter(scan.stem.rsplit("_", 1)[-1] for scan in images)
    if not kinds:
        raise UserError(f"{folder}: a BIDS folder without {', '.join(CONTRASTS)} images in sub-*/anat; add them")
    if len(kinds) > 1:
        each = " and ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
        raise UserError(f"{folder}: holds {each} images; a model learns one kind, list one in a manifest.csv")
    derived = [scan for root in children if root.name == "derivatives" for scan in _scans(root)]
    masks = [scan for scan in beside + derived if _is_mask(scan)]
    table = _participants(folder / "participants.tsv")
    return _bids_cases(folder, images, masks, table)


def _scans(root: Path) -> list[_Scan]:
    """Every NIfTI file in an ``anat`` folder below ``root``, with the subject and session its path names."""
    found = []
    for where, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        parts = Path(where).parts
        if "anat" not in parts:
            continue
        subject = next((part for part in reversed(parts) if part.startswith("sub-")), "")
        session = next((part for part in reversed(parts) if part.startswith("ses-")), "")
        for name in sorted(files):
            suffix = next((end for end in _NIFTI if name.lower().endswith(end)), None)
            if suffix and subject and not name.startswith("."):
                found.append(_Scan(Path(where, name), subject, session, name[: -len(suffix)]))
    return found


def _is_mask(scan: _Scan) -> bool:
    name = scan.path.name.lower()
    return ("mask" in name or "lesion" in name or name.split(".")[0].endswith("_roi")) and "brain" not in name


def _bids_cases(folder: Path, images: list[_Scan], masks: list[_Scan], table: dict[str, tuple[int | None, str]]) -> list[Case]:
    by_visit: dict[tuple[str, str], list[_Scan]] = {}
    for mask in masks:
        by_visit.setdefault((mask.subject, mask.session), []).append(mask)
    cases = []
    told = bool(masks) or any(label is not None for label, _ in table.values())  # otherwise a plain folder of normal images
    for scan in images:
        path = _mask_of(scan, by_visit.get((scan.subject, scan.session), []))
        label, split = table.get(scan.subject, (None, ""))
        if label is None and told and path is None:
            who = f"{folder}: {scan.subject} has no lesion mask"
            raise UserError(f"{who}, and participants.tsv names no group for it; add a group column with 'control' or 'patient'")
        label = label if label is not None else int(path is not None)
        cases.append(
            Case(
                name=scan.path.relative_to(folder).as_posix(),
                image=scan.path,
                mask=path,
                subject=scan.subject,
                label=label,
                split=split or ("test" if label else "train"),
                note=scan.session,
            )
        )
    return cases


def _mask_of(scan: _Scan, masks: list[_Scan]) -> Path | None:
    """The mask of the same visit; where there are several, the one that is named after the image."""
    own = [mask for mask in masks if mask.stem.startswith(scan.stem)] or masks
    if len(own) > 1:
        raise UserError(f"{scan.path}: has {len(own)} masks ({own[0].path.name}, {own[1].path.name}, …); keep one of them")
    return own[0].path if own else None


def _participants(path: Path) -> dict[str, tuple[int | None, str]]:
    """Subject → (label, split), as far as ``participants.tsv`` says so in a group and a split column."""
    if not path.is_file():
        return {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
    except (UnicodeDecodeError, csv.Error) as err:
        raise UserError(f"{path}: not a table ({err}); save it in UTF-8, separated by tabs") from None
    columns = [name for name in GROUPS if rows and name in rows[0]]
    if len(columns) > 1:
        raise UserError(f"{path}: has the columns {' and '.join(columns)}; which says who is healthy is not clear, keep one")
    groups = [(row.get(columns[0]) or "").strip().lower() if columns else "" for row in rows]
    named = {group for group in groups if group and group != "n/a"}
    if named and not named & set(_HEALTHY) and not named <= set(_ILL):
        unknown = f"{path}: none of the groups {', '.join(sorted(named))} is called 'control'"
        raise UserError(f"{unknown}; who is healthy is not clear, rename one")
    found: dict[str, tuple[int | None, str]] = {}
    for row, group in zip(rows, groups, strict=True):
        split = (row.get("split") or "").strip().lower().replace("n/a", "")
        if split and split not in SPLITS:
            raise UserError(f"{path}: split '{split}' is not one of {', '.join(SPLITS)}")
        label = None if group not in named else int(group not in _HEALTHY)
        found[row.get("participant_id") or ""] = (label, split)
    return found
