"""IXI: T1 slices of healthy adults, all in the training split; or THOR's PNGs of one slice each."""

import re
from functools import partial
from pathlib import Path

import numpy as np

from reshift.data.volume import Volume
from reshift.datasets.plan import CaseResult, Plan, Settings, SourceCase, not_found_error, safe_name
from reshift.datasets.samples import AREA_RULE, SHARE, SLICE_RULES, cut_slices, load_labelled_volume, ready_image
from reshift.errors import UserError

VOLUMES = 581  # the paper prints 582; the public list of T1 files has 581
NAME = re.compile(r"^(?P<subject>IXI\d{3})-(?P<site>[A-Za-z]+)-(?P<number>\d{4})[-_][Tt]1\.nii(\.gz)?$")
PNG = re.compile(r"^sub-(?P<subject>IXI\d{3})_(?!.*desc-Crop).*T1w\.png$")
LEVELS = (30, 40, 50, 60, 70)  # millimetres below the crown: from the centrum semiovale to the basal ganglia
MIDDLE = (55,)  # about the level of ATLAS's slice 95
CROWN = 0.05  # of the largest slice's foreground: where the head begins
LAYOUTS = ("IXI002-Guys-0828-T1.nii.gz (IXI-T1.tar, unpacked)", "THOR's png/sub-IXI002_ses-M00_…_T1w.png")


def plan(tree: list[Path], source: Path, settings: Settings) -> Plan:
    """Find the volumes; protocol ``levels`` takes five slices each, ``middle`` one."""
    levels = MIDDLE if settings.protocol in ("middle", "slice95") else LEVELS
    cases = list[SourceCase]()
    for path in tree:
        if match := NAME.match(path.name):
            key = safe_name(f"{match['subject']}-{match['site']}-{match['number']}")
            convert = partial(_case, source / path, key, match["site"], levels, settings)
        elif match := PNG.match(path.name):
            key = safe_name(match["subject"])
            convert = partial(ready_image, source / path, None, settings.size, key, lambda _: "train", note="IXI")
        else:
            continue
        cases.append(SourceCase(key, match["subject"], (path,), convert))
    if not cases:
        raise not_found_error(source, "IXI", LAYOUTS, tree)
    places = ", ".join(str(level) for level in levels)
    rules = [*SLICE_RULES, AREA_RULE, f"slices {places} mm below the crown", "all images: train"]
    layout = "IXI volumes" if any(case.files[0].suffix != ".png" for case in cases) else "THOR's PNGs"
    return Plan(layout, cases, [("T1 volumes", VOLUMES, len(cases))], rules)


def _case(path: Path, key: str, site: str, levels: tuple[int, ...], settings: Settings) -> CaseResult:
    labelled = load_labelled_volume(path)
    return cut_slices(labelled, below_crown(labelled.volume, levels), settings.size, key, lambda _: "train", f"IXI {site}")


def below_crown(volume: Volume, millimetres: tuple[int, ...]) -> list[int]:
    """Slices at these distances below the top of the head, which finds the brain even if the neck is in the volume."""
    area = volume.foreground_sizes
    crown = int(np.flatnonzero(area >= CROWN * area.max())[-1])
    wanted = [crown - round(mm / volume.spacing[0]) for mm in millimetres]
    found = [k for k in wanted if k >= 0 and area[k] >= SHARE * area.max()]
    if not found:
        height = len(volume) * volume.spacing[0]
        raise UserError(
            f"{volume.source}: no slice {millimetres[0]} mm or more below the crown (the volume is {height:.0f} mm high)"
        )
    return found
