"""ATLAS v2.0: T1 slices of stroke patients. The published lists train on 218 images that they also test on; ours do not.

Protocol ``slice95`` takes one slice of each scan, z = 95, as THOR and the paper do: slices with a lesion are tested on; of those
without, half the subjects are learned from and the other half tested on.
Protocol ``subjects`` takes slices all through the brain and splits the subjects.
"""

import csv
import re
from collections import Counter
from functools import partial
from pathlib import Path

from reshift.datasets.build import Job, Made, Plan, Settings, drawn, not_found, parts
from reshift.datasets.slices import AREA_RULE, SLICE_RULES, cut, every, load_scan, ready_made
from reshift.errors import UserError

SCANS = 655
LEVEL = 95
STEP = 10.0  # millimetres between slices
SCAN = re.compile(r"^sub-(?P<subject>r\d{3}s\d{3})_ses-(?P<visit>\w+?)_.*T1w\.nii(\.gz)?$")
MASK = re.compile(r"^sub-(?P<subject>r\d{3}s\d{3})_ses-(?P<visit>\w+?)_.*T1lesion_mask\.nii(\.gz)?$")
PNG = re.compile(r"^Atlas_train_(?P<number>\d+)\.png$")
LAYOUTS = (
    "Training/R001/sub-r001s001/ses-1/anat/sub-r001s001_ses-1_…_T1w.nii.gz with …_label-L_desc-T1lesion_mask.nii.gz",
    "THOR's png_128_sl_95/Atlas_train_0.png with Atlas_train_0_mask.png",
)


def plan(tree: list[Path], source: Path, settings: Settings) -> Plan:
    """Find the scans that have a mask."""
    scans = {_id(SCAN, path): path for path in tree if SCAN.match(path.name)}
    if not scans:
        return _ready(tree, source, settings)
    masks = {_id(MASK, path): path for path in tree if MASK.match(path.name)}
    hidden = [path for key, path in scans.items() if key not in masks and "Testing" in path.parts]
    problems = [
        f"{path.as_posix()}: has no lesion mask beside it"
        for key, path in scans.items() if key not in masks and path not in hidden
    ]  # fmt: skip
    problems += [f"{path.as_posix()}: a lesion mask without its T1 image" for key, path in masks.items() if key not in scans]
    both = {key: (scans[key], masks[key]) for key in scans if key in masks}
    to = _sides([key.partition("_")[0] for key in both], settings)
    jobs = [
        Job(key, subject, pair, partial(_case, source / pair[0], source / pair[1], key, to[subject], settings))
        for key, pair in both.items() if (subject := key.partition("_")[0])
    ]  # fmt: skip
    notes = [_LEAK] if settings.protocol == "slice95" else []
    notes += [f"{len(hidden)} scans of the Testing folder have no public mask and are not used"] if hidden else []
    return Plan("ATLAS volumes", jobs, [("scans with masks", SCANS, len(both))], _rules(settings), problems, notes)


_LEAK = (
    "the published lists test on every image they train on from ATLAS (218 of 655); here no subject is learned from and tested on"
)


def _id(pattern: re.Pattern[str], path: Path) -> str:
    match = pattern.match(path.name)
    return f"{match['subject']}_ses-{match['visit']}" if match else ""


def _sides(subjects: list[str], settings: Settings) -> dict[str, str]:
    """For ``slice95`` half and half; a subject's side is drawn before anyone looks whether its slice has a lesion.

    A subject with several visits is tested on: one of them may show a lesion and another not.
    """
    if settings.protocol == "subjects":
        return parts(subjects, settings.seed)
    visits, order = Counter(subjects), drawn(subjects, settings.seed)
    return {s: "train" if 2 * i < len(order) and visits[s] == 1 else "test" for i, s in enumerate(order)}


def _goes(side: str, protocol: str, label: int) -> str | None:
    """Of a subject with one slice, a lesion is tested on whichever side the subject was drawn for."""
    if not label or side == "test":
        return side
    return "test" if protocol == "slice95" else None


def _case(image: Path, mask: Path, key: str, side: str, settings: Settings) -> Made:
    scan = load_scan(image, mask)
    if settings.protocol == "slice95":
        if len(scan.volume) <= LEVEL:
            raise UserError(
                f"{image}: has {len(scan.volume)} slices, the protocol takes number {LEVEL}; is it in MNI space at 1 mm?"
            )
        levels = [LEVEL]
    else:
        levels = every(scan.volume, STEP)
    note = f"ATLAS {key[:4].upper()}"  # the cohort
    return cut(scan, levels, settings.size, key, partial(_goes, side, settings.protocol), note)


def _rules(settings: Settings) -> list[str]:
    if settings.protocol == "slice95":
        return [*SLICE_RULES, f"one slice a scan, z = {LEVEL}", "slices without lesion: half the subjects train, half test"]
    return [*SLICE_RULES, AREA_RULE, f"a slice every {STEP:g} mm", "subjects: 75 % train, 5 % val, 20 % test"]


def _ready(tree: list[Path], source: Path, settings: Settings) -> Plan:
    """THOR's PNGs; their numbers are the subjects, one image each."""
    images = {path.name: path for path in tree if PNG.match(path.name)}
    if not images:
        raise not_found(source, "ATLAS v2.0", LAYOUTS, tree)
    if settings.protocol == "subjects":
        raise UserError(f"{source}: THOR's PNGs have one slice of each subject; protocol 'subjects' needs the volumes")
    masks = {path.name: path for path in tree if path.name.endswith("_mask.png")}
    to, jobs, problems = _sides([Path(name).stem for name in images], settings), list[Job](), list[str]()
    for name, path in images.items():
        subject = Path(name).stem
        mask = masks.get(f"{subject}_mask.png")
        if mask is None:
            problems.append(f"{path.as_posix()}: has no {subject}_mask.png; whether it is healthy is not known")
            continue
        goes = partial(_goes, to[subject], settings.protocol)
        make = partial(ready_made, source / path, source / mask, settings.size, subject, goes, note="ATLAS")
        jobs.append(Job(subject, subject, (path, mask), make))
    problems += [f"{p.as_posix()}: a mask without its image" for n, p in masks.items() if n.replace("_mask", "") not in images]
    notes = [_LEAK, *_leaks([source / path for path in tree if path.suffix == ".csv"], source)]
    rules = [
        "THOR's own pictures of z = 95, resized; masks by nearest neighbour",
        "a lesion under 10 pixels at 128 × 128 is left out", "slices without lesion: half the subjects train, half test",
    ]  # fmt: skip
    return Plan("THOR's PNGs", jobs, [("images", SCANS, len(images))], rules, problems, notes)


def _leaks(lists: list[Path], source: Path) -> list[str]:
    """Name the lists that share images; none of them is followed."""
    named = {}
    for path in lists:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        names = {Path(cell).name for cell in cells}
        named[path.relative_to(source).as_posix()] = {name for name in names if PNG.match(name)}
    trained = [name for name in named if "train" in Path(name).stem]
    pairs = [(train, test, len(named[train] & named[test])) for train in trained for test in named if test not in trained]
    return [f"{train} and {test} share {shared} ATLAS images; neither list is used" for train, test, shared in pairs if shared]
