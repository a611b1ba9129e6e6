"""BUSI: breast ultrasound. It names no patients, so a group of near-duplicate images counts as one subject.

The paper trains on 32 normals and tests on the 647 images with a lesion, so its test set has no normal image. Here the other
101 normals are in the test split too.
"""

import re
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np

from reshift.data.hashing import near_duplicates, perceptual_hash
from reshift.data.prepare import LUMA
from reshift.data.raster import SUFFIXES
from reshift.data.read import read_image
from reshift.datasets.plan import CaseResult, Plan, Sample, Settings, SourceCase, by_name, not_found_error, safe_name, shuffled
from reshift.datasets.samples import read_square_image
from reshift.errors import UserError
from reshift.system.progress import progress

IMAGES = {"normal": 133, "benign": 437, "malignant": 210}
TRAIN = 32
NEAR = 40  # bits of 256 that may differ; docs/datasets.md has the measurement
NAME = re.compile(r"^(?P<image>(?P<kind>normal|benign|malignant) \((?P<number>\d+)\))(?P<mask>_mask(_\d+)?)?\.png$")
LAYOUTS = ("benign/benign (1).png with benign (1)_mask.png, and malignant/ and normal/ alike (Dataset_BUSI_with_GT)",)


def plan(tree: list[Path], source: Path, settings: Settings) -> Plan:
    """Pair images with all their masks, group near-duplicates, and choose 32 normals to train on."""
    masks, problems = dict[str, list[Path]](), list[str]()
    named = by_name((path for path in tree if NAME.match(path.name)), lambda path: path.name, problems)
    for path in named.values():
        match = NAME.match(path.name)
        if match and match["mask"]:
            masks.setdefault(match["image"], []).append(path)  # the whole "benign (1)", which is not "benign (10)"
    images = {Path(name).stem: path for name, path in named.items() if "_mask" not in name}
    if not images:
        raise not_found_error(source, "BUSI", LAYOUTS, tree)
    problems += [f"{masks[name][0].as_posix()}: a mask without its image" for name in sorted(masks.keys() - images.keys())]
    unmarked = [name for name in sorted(images.keys() - masks.keys()) if not name.startswith("normal")]
    problems += [f"{images.pop(name).as_posix()}: has a lesion, but no mask" for name in unmarked]
    groups, damaged = _groups(images, source)
    problems += damaged
    train = _choose_training(groups, settings.seed)
    cases = []
    for name, subject in groups.items():
        split, files = "train" if name in train else "test", (images[name], *masks.get(name, []))
        convert = partial(_case, source / files[0], [source / f for f in files[1:]], name, split, settings)
        cases.append(SourceCase(safe_name(name), subject, files, convert))
    kinds = Counter(name.partition(" ")[0] for name in images)
    expected = [(f"{kind} images", want, kinds[kind]) for kind, want in IMAGES.items()]
    duplicates, notes = _duplicates(groups)
    strange = [path.as_posix() for path in tree if path.suffix.lower() in SUFFIXES and not NAME.match(path.name)]
    if strange:
        notes.append(f"{len(strange)} images are not named as BUSI's PNGs are and are not used, the first: {strange[0]}")
    return Plan("BUSI images", cases, expected, _rules(settings), problems, notes, {"near_duplicates": duplicates})


def _rules(settings: Settings) -> list[str]:
    return [
        "several masks of an image are one lesion mask, by OR; any pixel above 0 in any channel is lesion",
        f"{settings.fit}: " + ("the largest centred square" if settings.fit == "crop" else "padded to a square with black"),
        f"{TRAIN} normals train (at most half of them); all others test",
        f"images whose 256-bit perceptual hashes differ in at most {NEAR} bits are one subject",
        "an image whose lesion the crop removes is left out",
    ]


def _groups(images: dict[str, Path], source: Path) -> tuple[dict[str, str], list[str]]:
    """Image → subject, which is the name of the first image of its group."""
    hashes, names, problems = [], list[str](), list[str]()
    with progress("comparing", len(images)) as advance:
        for name in sorted(images, key=_order):
            try:
                pixels = read_image(source / images[name]).pixels.astype(np.float32)
            except UserError as err:
                problems.append(str(err).replace(f"{source}/", ""))
            else:
                hashes.append(perceptual_hash(pixels[:, :, 0] if pixels.shape[2] == 1 else np.asarray(pixels @ LUMA)))
                names.append(name)
            advance()
    subject = {name: safe_name(name) for name in names}
    for members in near_duplicates(np.stack(hashes), NEAR) if hashes else []:
        for row in members:
            subject[names[row]] = safe_name(names[members[0]])
    return subject, problems


def _order(name: str) -> tuple[str, int]:
    kind, _, number = name.partition(" ")
    return kind, int(number.strip("()"))


def _choose_training(groups: dict[str, str], seed: int) -> set[str]:
    """Choose whole groups of normals until there are 32 images; a group with a lesion goes to the test split."""
    members: dict[str, list[str]] = {}
    for name, subject in groups.items():
        members.setdefault(subject, []).append(name)
    pure = {s: names for s, names in members.items() if all(name.startswith("normal") for name in names)}
    wanted = min(TRAIN, sum(name.startswith("normal") for name in groups) // 2)
    train = set[str]()
    for subject in shuffled(pure, seed):
        if len(train) + len(pure[subject]) <= wanted:
            train |= set(pure[subject])
    return train


def _duplicates(groups: dict[str, str]) -> tuple[list[list[str]], list[str]]:
    """The groups of more than one image, and notes about them."""
    members: dict[str, list[str]] = {}
    for name, subject in groups.items():
        members.setdefault(subject, []).append(name)
    shown = [names for names in members.values() if len(names) > 1]
    kinds = [{name.partition(" ")[0] for name in names} for names in shown]
    notes = ["the paper's test set has no normal image; here it has the normals that are not in the training split"]
    if shown:
        across = sum(len(kind) > 1 for kind in kinds)
        count = sum(len(names) for names in shown)
        notes.append(
            f"{count} images are near-duplicates, in {len(shown)} groups, {across} of them across classes (dataset.json)"
        )
    return shown, notes


def _case(path: Path, masks: list[Path], name: str, split: str, settings: Settings) -> CaseResult:
    kind = name.partition(" ")[0]
    pixels, lesion = read_square_image(path, masks, settings.size, settings.fit, lesion=kind != "normal")
    if kind == "normal":
        if lesion.any():
            raise UserError(f"{path}: a normal image whose mask is not empty; remove the image or the mask")
        return CaseResult([Sample(safe_name(name), pixels, 0, split, note=kind)])
    if not lesion.any():
        return CaseResult([], Counter({"lesion outside the crop": 1}))
    return CaseResult([Sample(safe_name(name), pixels, 1, split, lesion, note=kind)])
