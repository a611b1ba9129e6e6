"""WMH challenge 2017: every FLAIR slice with enough brain. Label 2 is other pathology and ignored by all metrics."""

import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

from reshift.datasets.brain_masks import BrainMasks, strip
from reshift.datasets.plan import CaseResult, NotFoundError, Plan, Settings, SourceCase, not_found_error, safe_name, unopened
from reshift.datasets.samples import AREA_RULE, SHARE, SLICE_RULES, cut_slices, load_labelled_volume
from reshift.errors import UserError

CASES = {"training": 60, "test": 110}
PARTS = ("training", "test")
LABEL = re.compile(r"^wmh\.nii(\.gz)?$")
LAYOUTS = (
    "training/Utrecht/0/wmh.nii.gz with pre/FLAIR.nii.gz or orig/FLAIR.nii.gz",
    "test/Amsterdam/Philips_VU .PETMR_01./160/wmh.nii.gz with the same",
)


def plan(tree: list[Path], source: Path, settings: Settings) -> Plan:
    """Find the cases. All are in the test split, for a model trained on other FLAIR images."""
    masks = {path.parent: path for path in tree if LABEL.match(path.name)}
    images: dict[Path, Path] = {}
    for stage in ("orig", "pre"):  # pre wins: its bias field is corrected
        images |= {p.parent.parent: p for p in tree if p.parent.name == stage and p.name in ("FLAIR.nii.gz", "FLAIR.nii")}
    images = {case: path for case, path in images.items() if "additional_annotations" not in case.parts}
    if not masks or not images:
        raise not_found_error(source, "WMH challenge data", LAYOUTS, tree)
    found = {case: _place(case) for case in sorted({*masks, *images}) if "additional_annotations" not in case.parts}
    wanted = CASES if settings.protocol == "all" else (settings.protocol,)
    chosen = {case: place for case, place in found.items() if place[0] in wanted or not place[0]}
    if not chosen:
        other = ", ".join(sorted({part for part, _, _ in found.values()}))
        raise NotFoundError(f"{source}: has no '{settings.protocol}' cases, only {other}; see --protocol{unopened(tree)}")
    cases, problems = list[SourceCase](), list[str]()
    brains = BrainMasks(settings.brain_masks, PARTS) if settings.brain_masks else None
    for case, (part, site, number) in chosen.items():
        if case not in masks:
            problems.append(f"{images[case].as_posix()}: has no wmh.nii.gz in its case's folder")
        elif case not in images:
            problems.append(f"{masks[case].as_posix()}: has no pre/FLAIR.nii.gz or orig/FLAIR.nii.gz beside it")
        else:
            subject, image = safe_name(f"{site}-{number}"), images[case]
            try:
                brain = brains.find(part, f"{site}/{number}", image.parent.name) if brains else None
            except UserError as err:
                problems.append(f"{image.as_posix()}: {err}")
                continue
            convert = partial(_case, source / image, source / masks[case], brain, subject, f"{site} {part}".strip(), settings)
            cases.append(SourceCase(subject, subject, (image, masks[case], *([brain.absolute()] if brain else [])), convert))
    rest = brains.unused() if brains else []
    notes = [f"{len(rest)} files of --brain-masks are not used, the first: {rest[0]}"] if rest else []
    expected = [(f"{part} cases", CASES[part], _count(chosen, part)) for part in wanted]
    rules = [*SLICE_RULES, AREA_RULE, "label 1: lesion; label 2: ignored; all images: test"]
    sites = dict(sorted(Counter(site for _, site, _ in chosen.values()).items()))
    rules += ["everything outside the brain mask is 0"] if brains else []
    caveat = None if brains else SKULL
    lacks = any(not _count(chosen, part) for part in wanted) and all(part for part, _, _ in chosen.values())
    return Plan("WMH volumes", cases, expected, rules, problems, notes, {"sites": sites}, caveat, lacks)


SKULL = (
    "the skull is on these images and not on BraTS's: a BraTS model scores skull and eyes; prepare them with --brain-masks "
    "(HD-BET or SynthStrip)"
)


def _count(cases: dict[Path, tuple[str, str, str]], part: str) -> int:
    return sum(place[0] == part for place in cases.values())


def _place(case: Path) -> tuple[str, str, str]:
    """Part, site and number from a case's folder; Amsterdam has one folder level more."""
    *above, number = case.parts or ("",)
    part = next((name for name in above if name in PARTS), "")
    folders = above[above.index(part) + 1 :] if part else above[-2:]
    return part, safe_name("-".join(folders)) or "unknown", number


def _case(image: Path, mask: Path, brain: Path | None, key: str, note: str, settings: Settings) -> CaseResult:
    labelled = load_labelled_volume(image, mask, lesion=(1,), ignore=(2,))
    if brain is not None:
        labelled = replace(labelled, volume=strip(labelled.volume, brain))
    return cut_slices(labelled, labelled.volume.foreground_slices(SHARE), settings.size, key, lambda _: "test", note)
