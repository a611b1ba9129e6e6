"""Folders in a known layout: MVTec's train/good and test/<defect>, and BIDS's sub-*/anat.

``detect`` returns None for any other folder. What a layout leaves unclear is refused in one line, never guessed.
"""

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from reshift.data.cases import SPLITS, Case
from reshift.data.files import list_files, list_folders
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

_Participants = dict[str, tuple[int | None, str]]  # subject → label (None if not known) and split ("" if not given)


def detect(folder: Path) -> list[Case] | None:
    """Return the cases of a folder in a known layout, or None. They are not checked yet: give them to ``check_cases``."""
    children = list_folders(folder)
    if any(_is_bids_subject(path) for path in children):
        return _bids(folder, children)
    if _is_mvtec(children):
        return _mvtec(folder, children)
    several = [path.name for path in children[:50] if _is_mvtec(list_folders(path))]
    if len(several) > 1:
        raise UserError(f"{folder}: holds {len(several)} data sets ({', '.join(several[:3])}, …); give the folder of one of them")
    return None


def _is_mvtec(children: Sequence[Path]) -> bool:
    """Whether a train, val or test folder has a class folder of normal images."""
    splits = [path for path in children if path.name.lower() in _SPLITS]
    return any(path.name.lower() in NORMAL for split in splits for path in list_folders(split))


def _mvtec(folder: Path, children: Sequence[Path]) -> list[Case]:
    truth = {kind.name.lower(): kind for path in children if path.name.lower() in _TRUTH for kind in list_folders(path)}
    tested = {kind.name.lower() for path in children if path.name.lower() == "test" for kind in list_folders(path)}
    if set(truth) - tested:
        extra = truth[min(set(truth) - tested)]
        raise UserError(f"{extra}: these masks belong to no folder test/{extra.name}; rename one of them")
    cases: list[Case] = []
    for split in children:
        if split.name.lower() not in _SPLITS:
            continue
        classes = list_folders(split)
        inside = {path for kind in classes for path in list_images(kind)}
        loose = [path for path in list_images(split) if path not in inside]
        if loose:
            raise UserError(f"{loose[0]}: is beside the class folders; move it into {split.name}/good or {split.name}/<defect>")
        for kind in classes:
            cases += _class(folder, split, kind, truth)
    return cases


def _class(folder: Path, split: Path, kind: Path, truth: dict[str, Path]) -> list[Case]:
    """The images of one class folder: directly in it, or in ``img/`` with masks in ``label/`` beside them."""
    normal = kind.name.lower() in NORMAL
    inner = {path.name.lower(): path for path in list_folders(kind)}
    images = next((inner[name] for name in _IMAGES if name in inner), None)
    masks = next((inner[name] for name in _MASKS if name in inner), None)
    if masks is not None and images is None:
        raise UserError(f"{masks}: masks inside a class folder; put the images into {kind.name}/img beside them")
    if masks is None and split.name.lower() == "test":
        masks = truth.get(kind.name.lower())
    root = images or kind
    files = list_images(root)
    mask_of = _match_masks(files, root, masks) if masks else {}
    return [
        Case(
            name=path.relative_to(folder).as_posix(),
            image=path,
            mask=mask_of.get(path),
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
    for path in images:
        stem = _stem(path, root)
        if stem in by_stem:
            raise UserError(f"{path}: {by_stem[stem].name} has the same name but another suffix; rename one")
        by_stem[stem] = path
    found: dict[Path, Path] = {}
    for mask in list_images(masks):
        stem = _stem(mask, masks)
        image = by_stem.get(stem) or by_stem.get(stem.removesuffix("_mask"))
        if image is None:
            raise UserError(f"{mask}: matches no image in {root}; a mask has its image's name, with or without _mask")
        if image in found:
            raise UserError(f"{mask}: {found[image].name} is a mask of the same image; keep one of them")
        found[image] = mask
    return found


def _stem(path: Path, root: Path) -> str:
    name = path.relative_to(root).as_posix()
    suffix = next((end for end in _NIFTI if name.lower().endswith(end)), path.suffix)
    return name[: len(name) - len(suffix)]


def _is_bids_subject(path: Path) -> bool:
    if not path.name.startswith("sub-"):
        return False
    return (path / "anat").is_dir() or any(
        (path / s.name / "anat").is_dir() for s in list_folders(path) if s.name.startswith("ses-")
    )


class _BidsFile(NamedTuple):
    """A NIfTI file of a BIDS folder."""

    path: Path
    subject: str  # sub-01
    session: str  # ses-1 or ""
    stem: str


def _bids(folder: Path, children: Sequence[Path]) -> list[Case]:
    subjects = [path for path in children if path.name.startswith("sub-")]
    files = [file for subject in subjects for file in _nifti_files(subject)]
    images = [file for file in files if file.stem.rsplit("_", 1)[-1] in CONTRASTS and not _is_mask(file)]
    kinds = Counter(file.stem.rsplit("_", 1)[-1] for file in images)
    if not kinds:
        raise UserError(f"{folder}: a BIDS folder without {', '.join(CONTRASTS)} images in sub-*/anat; add them")
    if len(kinds) > 1:
        each = " and ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
        raise UserError(f"{folder}: holds {each} images; a model is trained on one kind, list one in a manifest.csv")
    derived = [file for root in children if root.name == "derivatives" for file in _nifti_files(root)]
    masks = [file for file in files + derived if _is_mask(file)]
    table = _participants(folder / "participants.tsv")
    return _bids_cases(folder, images, masks, table)


def _nifti_files(root: Path) -> list[_BidsFile]:
    """Every NIfTI file in an ``anat`` folder below ``root``, with the subject and session from its path."""
    found = []
    for path in list_files(root):
        suffix = next((end for end in _NIFTI if path.name.lower().endswith(end)), None)
        parts = path.parent.parts
        subject = next((part for part in reversed(parts) if part.startswith("sub-")), "")
        session = next((part for part in reversed(parts) if part.startswith("ses-")), "")
        if suffix and subject and "anat" in parts:
            found.append(_BidsFile(path, subject, session, path.name[: -len(suffix)]))
    return found


def _is_mask(file: _BidsFile) -> bool:
    name = file.path.name.lower()
    return ("mask" in name or "lesion" in name or name.split(".")[0].endswith("_roi")) and "brain" not in name


def _bids_cases(folder: Path, images: list[_BidsFile], masks: list[_BidsFile], table: _Participants) -> list[Case]:
    by_session: dict[tuple[str, str], list[_BidsFile]] = {}
    for mask in masks:
        by_session.setdefault((mask.subject, mask.session), []).append(mask)
    cases = []
    labelled = bool(masks) or any(label is not None for label, _ in table.values())  # otherwise all images are normal
    for file in images:
        path = _mask_of(file, by_session.get((file.subject, file.session), []))
        label, split = table.get(file.subject, (None, ""))
        if label is None and labelled and path is None:
            missing = f"{folder}: {file.subject} has no lesion mask"
            raise UserError(f"{missing} and no group in participants.tsv; add a group column with 'control' or 'patient'")
        label = label if label is not None else int(path is not None)
        cases.append(
            Case(
                name=file.path.relative_to(folder).as_posix(),
                image=file.path,
                mask=path,
                subject=file.subject,
                label=label,
                split=split or ("test" if label else "train"),
                note=file.session,
            )
        )
    return cases


def _mask_of(file: _BidsFile, masks: list[_BidsFile]) -> Path | None:
    """The mask of the same session; where there are several, the one that is named after the image."""
    own = [mask for mask in masks if mask.stem.startswith(file.stem)] or masks
    if len(own) > 1:
        raise UserError(f"{file.path}: has {len(own)} masks ({own[0].path.name}, {own[1].path.name}, …); keep one of them")
    return own[0].path if own else None


def _participants(path: Path) -> _Participants:
    """Subject → (label, split), from the group and split columns of ``participants.tsv``."""
    if not path.is_file():
        return {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
    except (UnicodeDecodeError, csv.Error) as err:
        raise UserError(f"{path}: not a table ({err}); save it as UTF-8 text with tabs between columns") from None
    columns = [name for name in GROUPS if rows and name in rows[0]]
    if len(columns) > 1:
        raise UserError(f"{path}: has the columns {' and '.join(columns)}; keep the one that says who is healthy")
    groups = [(row.get(columns[0]) or "").strip().lower() if columns else "" for row in rows]
    named = {group for group in groups if group and group != "n/a"}
    if named and not named & set(_HEALTHY) and not named <= set(_ILL):
        unknown = f"{path}: none of the groups {', '.join(sorted(named))} is called 'control'"
        raise UserError(f"{unknown}; rename the group of healthy subjects")
    found: _Participants = {}
    for row, group in zip(rows, groups, strict=True):
        split = (row.get("split") or "").strip().lower().replace("n/a", "")
        if split and split not in SPLITS:
            raise UserError(f"{path}: split '{split}' is not one of {', '.join(SPLITS)}")
        label = None if group not in named else int(group not in _HEALTHY)
        found[row.get("participant_id") or ""] = (label, split)
    return found
