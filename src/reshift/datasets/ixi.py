"""IXI: T1 slices of healthy adults, all of them to learn from; or THOR's ready-made PNGs of one slice each."""

import re
from functools import partial
from pathlib import Path

import numpy as np

from reshift.data.volume import Volume
from reshift.datasets.build import Job, Made, Plan, Settings, not_found, safe
from reshift.datasets.slices import AREA_RULE, SHARE, SLICE_RULES, cut, load_scan, ready_made
from reshift.errors import UserError

SCANS = 581  # the paper prints 582; the public list of T1 files has 581
NAME = re.compile(r"^(?P<subject>IXI\d{3})-(?P<site>[A-Za-z]+)-(?P<scan>\d{4})[-_][Tt]1\.nii(\.gz)?$")
PNG = re.compile(r"^sub-(?P<subject>IXI\d{3})_(?!.*desc-Crop).*T1w\.png$")
LEVELS = (30, 40, 50, 60, 70)  # millimetres below the crown: from the centrum semiovale to the basal ganglia
MIDDLE = (55,)  # about the level of ATLAS's slice 95
CROWN = 0.05  # of the largest slice's foreground: where the head begins
LAYOUTS = ("IXI002-Guys-0828-T1.nii.gz (IXI-T1.tar, unpacked)", "THOR's png/sub-IXI002_ses-M00_…_T1w.png")


def plan(tree: list[Path], source: Path, settings: Settings) -> Plan:
    """Find the scans; protocol ``levels`` takes five slices each, ``middle`` one."""
    levels = MIDDLE if settings.protocol in ("middle", "slice95") else LEVELS
    jobs = list[Job]()
    for path in tree:
        if match := NAME.match(path.name):
            key = safe(f"{match['subject']}-{match['site']}-{match['scan']}")
            make = partial(_case, source / path, key, match["site"], levels, settings)
        elif match := PNG.match(path.name):
            key = safe(match["subject"])
            make = partial(ready_made, source / path, None, settings.size, key, lambda _: "train", note="IXI")
        else:
            continue
        jobs.append(Job(key, match["subject"], (path,), make))
    if not jobs:
        raise not_found(source, "IXI", LAYOUTS, tree)
    places = ", ".join(str(level) for level in levels)
    rules = [*SLICE_RULES, AREA_RULE, f"slices {places} mm below the crown", "all images: train"]
    layout = "IXI volumes" if any(job.files[0].suffix != ".png" for job in jobs) else "THOR's PNGs"
    return Plan(layout, jobs, [("T1 scans", SCANS, len(jobs))], rules)


def _case(path: Path, key: str, site: str, levels: tuple[int, ...], settings: Settings) -> Made:
    scan = load_scan(path)
    return cut(scan, below_crown(scan.volume, levels), settings.size, key, lambda _: "train", f"IXI {site}")


def below_crown(volume: Volume, millimetres: tuple[int, ...]) -> list[int]:
    """Slices so far below the top of the head: where the brain is in a scan that shows the neck as well."""
    area = volume.foreground
    crown = int(np.flatnonzero(area >= CROWN * area.max())[-1])
    wanted = [crown - round(mm / volume.spacing[0]) for mm in millimetres]
    found = [k for k in wanted if k >= 0 and area[k] >= SHARE * area.max()]
    if not found:
        height = len(volume) * volume.spacing[0]
        raise UserError(
            f"{volume.source}: no slice {millimetres[0]} mm or more below the crown (the scan is {height:.0f} mm high)"
        )
    return found
