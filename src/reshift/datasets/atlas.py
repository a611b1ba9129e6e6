"""ATLAS v2.0: T1 slices of stroke patients. The published lists train on 218 images that they also test on; ours do not.

Protocol ``slice95`` takes one slice of each volume, z = 95, as THOR and the paper do. Slices with a lesion go to the test split;
of the subjects without, half go to the training split and half to the test split.
Protocol ``subjects`` takes slices through the whole brain and splits the subjects.
"""

import re
from collections import Counter
from functools import partial
from pathlib import Path

from reshift.datasets.plan import CaseResult, Plan, Settings, SourceCase, by_name, not_found_error, shuffled, split_subjects
from reshift.datasets.samples import AREA_RULE, SLICE_RULES, cut_slices, load_labelled_volume, ready_image, slices_every
from reshift.errors import UserError

VOLUMES = 655
LEVEL = 95
STEP = 10.0  # millimetres between slices
LESION = (1, 255)  # masks hold 0 and 1; some copies 0 and 255
IMAGE = re.compile(r"^sub-(?P<subject>r\d{3}s\d{3})_ses-(?P<visit>\w+?)_.*T1w\.nii(\.gz)?$")
MASK = re.compile(r"^sub-(?P<subject>r\d{3}s\d{3})_ses-(?P<visit>\w+?)_.*T1lesion_mask\.nii(\.gz)?$")
PNG = re.compile(r"^Atlas_train_(?P<number>\d+)\.png$")
LISTED = re.compile(r"\bAtlas_train_\d+\.png\b")
LAYOUTS = (
    "Training/R001/sub-r001s001/ses-1/anat/sub-r001s001_ses-1_…_T1w.nii.gz with …_label-L_desc-T1lesion_mask.nii.gz",
    "THOR's png_128_sl_95/Atlas_train_0.png with Atlas_train_0_mask.png",
)


def plan(tree: list[Path], source: Path, settings: Settings) -> Plan:
    """Find the volumes that have a mask."""
    problems = list[str]()
    volumes = by_name((path for path in tree if IMAGE.match(path.name)), partial(_id, IMAGE), problems)
    if not volumes:
        return _ready(tree, source, settings)
    masks = by_name((path for path in tree if MASK.match(path.name)), partial(_id, MASK), problems)
    hidden = [path for key, path in volumes.items() if key not in masks and "Testing" in path.parts]
    problems += [
        f"{path.as_posix()}: has no lesion mask beside it"
        for key, path in volumes.items() if key not in masks and path not in hidden
    ]  # fmt: skip
    problems += [f"{path.as_posix()}: a lesion mask without its T1 image" for key, path in masks.items() if key not in volumes]
    both = {key: (volumes[key], masks[key]) for key in volumes if key in masks}
    splits = _subject_splits([key.partition("_")[0] for key in both], settings)
    cases = [
        SourceCase(key, subject, pair, partial(_case, source / pair[0], source / pair[1], key, splits[subject], settings))
        for key, pair in both.items() if (subject := key.partition("_")[0])
    ]  # fmt: skip
    notes = [_LEAK_NOTE] if settings.protocol == "slice95" else []
    notes += [f"{len(hidden)} volumes of the Testing folder have no public mask and are not used"] if hidden else []
    return Plan("ATLAS volumes", cases, [("volumes with masks", VOLUMES, len(both))], _rules(settings), problems, notes)


_LEAK_NOTE = "the published lists test on every ATLAS image they train on (218 of 655); here no subject is in both splits"


def _id(pattern: re.Pattern[str], path: Path) -> str:
    match = pattern.match(path.name)
    return f"{match['subject']}_ses-{match['visit']}" if match else ""


def _subject_splits(subjects: list[str], settings: Settings) -> dict[str, str]:
    """Subject → split. For ``slice95`` half and half, before it is known whether the slice has a lesion.

    A subject with several visits goes to the test split: one visit may show a lesion and another not.
    """
    if settings.protocol == "subjects":
        return split_subjects(subjects, settings.seed)
    visits, order = Counter(subjects), shuffled(subjects, settings.seed)
    return {s: "train" if 2 * i < len(order) and visits[s] == 1 else "test" for i, s in enumerate(order)}


def _split_of(side: str, protocol: str, label: int) -> str | None:
    """The split of a slice; None leaves it out. With one slice per subject, a lesion always goes to the test split."""
    if not label or side == "test":
        return side
    return "test" if protocol == "slice95" else None


def _case(image: Path, mask: Path, key: str, side: str, settings: Settings) -> CaseResult:
    labelled = load_labelled_volume(image, mask, lesion=LESION)
    if settings.protocol == "slice95":
        if len(labelled.volume) <= LEVEL:
            raise UserError(
                f"{image}: has {len(labelled.volume)} slices, the protocol takes number {LEVEL}; is it in MNI space at 1 mm?"
            )
        levels = [LEVEL]
    else:
        levels = slices_every(labelled.volume, STEP)
    note = f"ATLAS {key[:4].upper()}"  # the cohort
    return cut_slices(labelled, levels, settings.size, key, partial(_split_of, side, settings.protocol), note)


def _rules(settings: Settings) -> list[str]:
    if settings.protocol == "slice95":
        return [*SLICE_RULES, f"one slice per volume, z = {LEVEL}", "slices without lesion: half the subjects train, half test"]
    return [*SLICE_RULES, AREA_RULE, f"a slice every {STEP:g} mm", "subjects: 75 % train, 5 % val, 20 % test"]


def _ready(tree: list[Path], source: Path, settings: Settings) -> Plan:
    """Plan THOR's PNGs; their numbers are the subjects, one image each."""
    problems = list[str]()
    images = by_name((path for path in tree if PNG.match(path.name)), _file_name, problems)
    if not images:
        raise not_found_error(source, "ATLAS v2.0", LAYOUTS, tree)
    if settings.protocol == "subjects":
        raise UserError(f"{source}: THOR's PNGs have one slice of each subject; protocol 'subjects' needs the volumes")
    masks = by_name((path for path in tree if path.name.endswith("_mask.png")), _file_name, problems)
    splits, cases = _subject_splits([Path(name).stem for name in images], settings), list[SourceCase]()
    for name, path in images.items():
        subject = Path(name).stem
        mask = masks.get(f"{subject}_mask.png")
        if mask is None:
            problems.append(f"{path.as_posix()}: has no {subject}_mask.png; whether it is healthy is not known")
            continue
        split_of = partial(_split_of, splits[subject], settings.protocol)
        convert = partial(ready_image, source / path, source / mask, settings.size, subject, split_of, note="ATLAS")
        cases.append(SourceCase(subject, subject, (path, mask), convert))
    problems += [f"{p.as_posix()}: a mask without its image" for n, p in masks.items() if n.replace("_mask", "") not in images]
    notes = [_LEAK_NOTE, *_leak_notes([source / path for path in tree if path.suffix == ".csv"], source)]
    rules = [
        "THOR's own images of z = 95, resized; masks by nearest neighbour",
        "a lesion under 10 pixels at 128 × 128 is left out", "slices without lesion: half the subjects train, half test",
    ]  # fmt: skip
    return Plan("THOR's PNGs", cases, [("images", VOLUMES, len(images))], rules, problems, notes)


def _file_name(path: Path) -> str:
    return path.name


def _leak_notes(lists: list[Path], source: Path) -> list[str]:
    """Notes about published lists that share images; no list is used."""
    named = {}
    for path in lists:
        with path.open(encoding="utf-8", errors="replace") as file:  # not as a table: any CSV may lie there
            named[path.relative_to(source).as_posix()] = {name for line in file for name in LISTED.findall(line)}
    trained = [name for name in named if "train" in Path(name).stem]
    pairs = [(train, test, len(named[train] & named[test])) for train in trained for test in named if test not in trained]
    return [f"{train} and {test} share {shared} ATLAS images; neither list is used" for train, test, shared in pairs if shared]
