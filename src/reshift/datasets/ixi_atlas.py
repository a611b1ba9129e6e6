"""The paper's T1 setting: train on IXI and lesion-free ATLAS slices, test on ATLAS."""

from pathlib import Path

from reshift.datasets import atlas, ixi
from reshift.datasets.plan import Plan, Settings

SHORTCUT = "IXI and ATLAS differ in scanners, registration and defacing: a score may separate the data sets, not disease"


def plan(tree: list[Path], source: Path, settings: Settings) -> Plan:
    """Join both plans; ``--source`` holds both downloads."""
    healthy, stroke = ixi.plan(tree, source, settings), atlas.plan(tree, source, settings)
    return Plan(
        f"{healthy.layout}, {stroke.layout}",
        healthy.cases + stroke.cases,
        healthy.expected + stroke.expected,
        [*(f"IXI: {rule}" for rule in healthy.rules), *(f"ATLAS: {rule}" for rule in stroke.rules)],
        healthy.problems + stroke.problems,
        [SHORTCUT, *healthy.notes, *stroke.notes],
    )
