"""The paper's T1 setting: IXI and lesion-free ATLAS slices to learn from, ATLAS to test on."""

from pathlib import Path

from reshift.datasets import atlas, ixi
from reshift.datasets.build import Plan, Settings

SHORTCUT = "IXI and ATLAS were made differently (scanners, registration, defacing): a score may tell them apart, not disease"


def plan(tree: list[Path], source: Path, settings: Settings) -> Plan:
    """Join both plans; ``--source`` holds both trees."""
    healthy, stroke = ixi.plan(tree, source, settings), atlas.plan(tree, source, settings)
    return Plan(
        f"{healthy.layout}, {stroke.layout}",
        healthy.jobs + stroke.jobs,
        healthy.expected + stroke.expected,
        [*(f"IXI: {rule}" for rule in healthy.rules), *(f"ATLAS: {rule}" for rule in stroke.rules)],
        healthy.problems + stroke.problems,
        [SHORTCUT, *healthy.notes, *stroke.notes],
    )
