"""What does `reshift calibrate` with normals of a new site change, and for whom?

    python benchmarks/new_site.py BUNDLE DATA/manifest.csv [--out new-site.json]

The bundle comes from another site than the test images. Every subject with normal images is left out in turn: a copy of
the bundle is calibrated with the normals of all other subjects, and judges that subject's images. Beside it, the bundle
as it was.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import judge_bundle
from reshift.data.cases import Case
from reshift.data.manifest import load_cases
from reshift.evaluation.evaluate import evaluate
from reshift.inference.calibrate import calibrate_bundle
from reshift.inference.model import load_model

FIELDS = ("normal", "abnormal", "false positives", "found", "not judged")


def judge(bundle: Path, cases: list[Case], out: Path) -> dict[str, int]:
    """How many normals and abnormal images there are, are flagged, and are not judged."""
    evaluate(load_model(bundle), cases, out, "new site")
    counts = dict.fromkeys(FIELDS, 0)
    for line in (out / "cases.jsonl").read_text().splitlines():
        case = json.loads(line)
        counts["abnormal" if case["label"] else "normal"] += 1
        counts["found" if case["label"] else "false positives"] += bool(case["flag"])
        counts["not judged"] += case.get("not_judged") is not None
    return counts


def normals_of_others(cases: list[Case], subject: str, out: Path) -> Path:
    """A manifest with the normal images of all other subjects."""
    rows = [f"{case.image.resolve()},{case.subject},train" for case in cases if case.label == 0 and case.subject != subject]
    out.write_text("\n".join(["image,subject,split", *rows]) + "\n")
    return out


def leave_one_out(bundle: Path, cases: list[Case]) -> Iterator[dict[str, Any]]:
    """One row per subject with normals: counts by the bundle as it was and after calibration."""
    subjects = sorted({case.subject for case in cases if case.label == 0})
    if len(subjects) < 2:
        raise SystemExit("the test split has normals of one subject only; it takes two")
    for subject in subjects:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            adapted = Path(shutil.copytree(bundle, folder / "bundle"))
            calibration = calibrate_bundle(adapted, normals_of_others(cases, subject, folder / "normals.csv"))
            own = [case for case in cases if case.subject == subject]
            before, after = (judge(b, own, folder / n) for b, n in ((bundle, "before"), (adapted, "after")))
            promised = calibration.reference.promised_rate
            yield {"subject": subject, "before": before, "after": after, "promised rate": round(promised, 3)}


def compare(bundle: Path, data: Path) -> dict[str, Any]:
    """Counts by subject, and over all."""
    rows = list(leave_one_out(bundle, [case for case in load_cases(data) if case.split == "test"]))
    total = {when: {name: sum(row[when][name] for row in rows) for name in FIELDS} for when in ("before", "after")}
    return {"subjects": rows, "all": total}


if __name__ == "__main__":
    judge_bundle(__doc__, compare)
