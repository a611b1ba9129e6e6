"""BraTS 2021 and BraTS-GLI: FLAIR slices with the whole tumour; or MedIAnomaly's PNGs of BraTS 2021."""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from reshift.datasets.plan import (
    CaseResult,
    Plan,
    Sample,
    Settings,
    SourceCase,
    by_name,
    not_found_error,
    safe_name,
    split_subjects,
)
from reshift.datasets.samples import AREA_RULE, SLICE_RULES, cut_slices, load_labelled_volume, read_square_image, slices_every
from reshift.errors import UserError

CASES = 1251
MEDIANOMALY = {"train": 4211, "test/normal": 828, "test/tumor": 1948}
ANNOTATION = "test/annotation"
STEP = 10.0  # millimetres between slices; neighbouring slices are almost the same image
NAME = re.compile(r"^((?P<old>BraTS2021_\d{5})_(flair|seg)|(?P<new>BraTS-GLI-\d{5})-\d{3}-(t2f|seg))\.nii(\.gz)?$")
LAYOUTS = (
    "BraTS2021_00000/BraTS2021_00000_flair.nii.gz with _seg.nii.gz",
    "BraTS-GLI-00000-000/BraTS-GLI-00000-000-t2f.nii.gz with -seg.nii.gz",
    "MedIAnomaly's train/, test/normal/, test/tumor/, test/annotation/ of PNGs",
)


def plan(tree: list[Path], source: Path, settings: Settings) -> Plan:
    """Find the cases; subjects go to train, val and test by the seed (938, 62 and 251 of all 1251)."""
    problems, cases = list[str](), list[SourceCase]()
    found = by_name((path for path in tree if NAME.match(path.name)), lambda path: path.name, problems)
    if not found:
        return _medianomaly(tree, source, settings)
    images = {name: path for name, path in found.items() if not _is_seg(name)}
    subject = {name: _subject(name) for name in images}
    split = split_subjects(subject.values(), settings.seed)
    for name, path in images.items():
        mask = found.get(re.sub(r"(flair|t2f)\.nii", "seg.nii", name)) or found.get(_seg_other_suffix(name))
        if mask is None:
            problems.append(f"{path.as_posix()}: has no segmentation beside it; download the training data, which has them")
            continue
        key = safe_name(re.sub(r"[_-](flair|t2f)\.nii(\.gz)?$", "", name))
        convert = partial(_case, source / path, source / mask, key, split[subject[name]], settings)
        cases.append(SourceCase(key, subject[name], (path, mask), convert))
    used = {case.files[1] for case in cases}
    problems += [f"{p.as_posix()}: a segmentation without its FLAIR" for n, p in found.items() if _is_seg(n) and p not in used]
    rules = [
        *SLICE_RULES,
        AREA_RULE,
        f"a slice every {STEP:g} mm",
        "whole tumour: labels 1, 2 and 4; in BraTS-GLI 1, 2 and 3, and 4 ignored",
    ]
    layout = "BraTS 2021 volumes" if any(name.startswith("BraTS2021") for name in images) else "BraTS-GLI volumes"
    return Plan(layout, cases, [("cases", CASES, len(images))], rules, problems)


def _is_seg(name: str) -> bool:
    return "seg.nii" in name


def _seg_other_suffix(name: str) -> str:
    """The name of the segmentation if only one of the two files is gzipped."""
    seg = re.sub(r"(flair|t2f)\.nii", "seg.nii", name)
    return seg.removesuffix(".gz") if seg.endswith(".gz") else f"{seg}.gz"


def _subject(name: str) -> str:
    """BraTS-GLI-00005-000 and -001 are two visits of one subject."""
    match = NAME.match(name)
    return "" if match is None else match["old"] or match["new"]


def _case(image: Path, mask: Path, key: str, split: str, settings: Settings) -> CaseResult:
    old = key.startswith("BraTS2021")
    labelled = load_labelled_volume(image, mask, lesion=(1, 2, 4) if old else (1, 2, 3), ignore=() if old else (4,))
    return cut_slices(labelled, slices_every(labelled.volume, STEP), settings.size, key, _only_normals(split))


def _only_normals(split: str) -> Callable[[int], str | None]:
    """Of a training subject only normal slices are used."""
    return lambda label: split if split == "test" or not label else None


def _medianomaly_folders(tree: list[Path], source: Path) -> dict[str, list[Path]]:
    """The PNGs by folder. Other data sets have a ``train`` folder, too, so all must be below one."""
    homes = dict[Path, dict[str, list[Path]]]()
    for path in (path for path in tree if path.suffix.lower() == ".png"):
        for name in (*MEDIANOMALY, ANNOTATION):
            home = path.parent.parent if "/" not in name else path.parent.parent.parent
            if path.parent == home / name:
                homes.setdefault(home, {key: [] for key in (*MEDIANOMALY, ANNOTATION)})[name].append(path)
    whole = [home for home, folders in homes.items() if all(folders[name] for name in MEDIANOMALY)]
    if not whole:
        raise not_found_error(source, "BraTS 2021", LAYOUTS, tree)
    if len(homes) > 1:
        names = ", ".join(home.as_posix() for home in homes)
        which = f"{whole[0].as_posix()} has all of MedIAnomaly's BraTS 2021" if len(whole) == 1 else "give the folder of one"
        raise UserError(f"{source}: {len(homes)} folders hold PNGs in train/ or test/ ({names}); --source must hold one, {which}")
    return homes[whole[0]]


def _medianomaly(tree: list[Path], source: Path, settings: Settings) -> Plan:
    folders = _medianomaly_folders(tree, source)
    masks = {path.name: path for path in folders[ANNOTATION]}
    tested = {_png_subject(path) for name in ("test/normal", "test/tumor") for path in folders[name]}
    cases, problems = list[SourceCase](), list[str]()
    for name in MEDIANOMALY:
        split = name.partition("/")[0]
        for path in folders[name]:
            key = safe_name(f"{name.replace('/', '-')}-{path.stem}")
            if split == "train" and _png_subject(path) in tested:
                cases.append(SourceCase(key, _png_subject(path), (path,), _leave_out))
                continue
            mask = masks.get(path.name.replace("flair", "seg")) if name == "test/tumor" else None
            if name == "test/tumor" and mask is None:
                problems.append(f"{path.as_posix()}: has no annotation of that name ('flair' replaced by 'seg')")
                continue
            convert = partial(_image, source / path, source / mask if mask else None, split, name, settings)
            cases.append(SourceCase(key, _png_subject(path), (path, *([mask] if mask else [])), partial(convert, key=key)))
    used = {case.files[-1] for case in cases}
    problems += [f"{p.as_posix()}: an annotation without its image" for p in folders[ANNOTATION] if p not in used]
    counts = [(f"images in {name}", want, len(folders[name])) for name, want in MEDIANOMALY.items()]
    rules = [
        "the benchmark's own images and split; centre-cropped and resized",
        "masks by nearest neighbour, above 0 is tumour",
    ]
    return Plan("MedIAnomaly PNGs", cases, counts, rules, problems)


def _leave_out() -> CaseResult:
    return CaseResult([], Counter({"training image whose subject is in the test set as well": 1}))


def _png_subject(path: Path) -> str:
    """BraTS2021_00000_flair_60.png → BraTS2021_00000; a name without 'flair' is kept."""
    stem, found, _ = path.stem.partition("flair")
    return stem.rstrip("_-") if found and stem.rstrip("_-") else path.stem


def _image(path: Path, mask: Path | None, split: str, folder: str, settings: Settings, *, key: str) -> CaseResult:
    pixels, lesion = read_square_image(path, [mask] if mask else [], settings.size, settings.fit, lesion=folder == "test/tumor")
    if folder == "test/tumor" and not lesion.any():
        return CaseResult([], Counter({"lesion outside the image": 1}))
    label = int(folder == "test/tumor")
    return CaseResult([Sample(key, pixels, label, split, lesion if label else None)])
