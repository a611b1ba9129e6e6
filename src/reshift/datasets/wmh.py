"""WMH challenge 2017: every FLAIR slice with enough brain. Label 2 is other pathology: it takes part in no figure."""

import re
from collections import Counter
from functools import partial
from pathlib import Path

from reshift.datasets.build import Job, Made, Plan, Settings, not_found, safe
from reshift.datasets.slices import AREA_RULE, SHARE, SLICE_RULES, cut, load_scan
from reshift.errors import UserError

CASES = {"training": 60, "test": 110}
PARTS = ("training", "test")
LABEL = re.compile(r"^wmh\.nii(\.gz)?$")
LAYOUTS = (
    "training/Utrecht/0/wmh.nii.gz with pre/FLAIR.nii.gz or orig/FLAIR.nii.gz",
    "test/Amsterdam/Philips_VU .PETMR_01./160/wmh.nii.gz with the same",
)


def plan(tree: list[Path], source: Path, settings: Settings) -> Plan:
    """Find the cases; all are tested on, for a model that was trained on other FLAIR images."""
    cases = {path.parent: path for path in tree if LABEL.match(path.name)}
    images: dict[Path, Path] = {}
    for stage in ("orig", "pre"):  # pre wins: it has the bias field removed
        images |= {p.parent.parent: p for p in tree if p.parent.name == stage and p.name in ("FLAIR.nii.gz", "FLAIR.nii")}
    images = {case: path for case, path in images.items() if "additional_annotations" not in case.parts}
    if not cases or not images:
        raise not_found(source, "WMH challenge data", LAYOUTS, tree)
    everything = {case: _place(case) for case in sorted({*cases, *images}) if "additional_annotations" not in case.parts}
    wanted = CASES if settings.protocol == "all" else (settings.protocol,)
    mine = {case: place for case, place in everything.items() if place[0] in wanted or not place[0]}
    if not mine:
        other = sorted({part for part, _, _ in everything.values()})
        raise UserError(f"{source}: has no '{settings.protocol}' cases, only {', '.join(other)}; see --protocol")
    jobs, problems = list[Job](), list[str]()
    for case, (part, site, number) in mine.items():
        if case not in cases:
            problems.append(f"{images[case].as_posix()}: has no wmh.nii.gz in its case's folder")
        elif case not in images:
            problems.append(f"{cases[case].as_posix()}: has no pre/FLAIR.nii.gz or orig/FLAIR.nii.gz beside it")
        else:
            subject = safe(f"{site}-{number}")
            make = partial(_case, source / images[case], source / cases[case], subject, f"{site} {part}".strip(), settings)
            jobs.append(Job(subject, subject, (images[case], cases[case]), make))
    expected = [(f"{part} cases", CASES[part], _count(mine, part)) for part in wanted]
    rules = [*SLICE_RULES, AREA_RULE, "label 1: lesion; label 2: ignored; all images: test"]
    sites = dict(sorted(Counter(site for _, site, _ in mine.values()).items()))
    return Plan("WMH volumes", jobs, expected, rules, problems, [_SKULL], {"sites": sites})


_SKULL = "these scans show the skull, BraTS does not: take it off (e.g. with HD-BET) before a BraTS model looks at them"


def _count(cases: dict[Path, tuple[str, str, str]], part: str) -> int:
    return sum(place[0] == part for place in cases.values())


def _place(case: Path) -> tuple[str, str, str]:
    """Part, site and number of a case's folder; Amsterdam has a folder more, one of them with a space and dots."""
    *above, number = case.parts or ("",)
    part = next((name for name in above if name in PARTS), "")
    folders = above[above.index(part) + 1 :] if part else above[-2:]
    return part, safe("-".join(folders)) or "unknown", number


def _case(image: Path, mask: Path, key: str, note: str, settings: Settings) -> Made:
    scan = load_scan(image, mask, lesion=(1,), ignore=(2,))
    return cut(scan, scan.volume.chosen(SHARE), settings.size, key, lambda _: "test", note)
