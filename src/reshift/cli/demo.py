"""``reshift demo``: the whole way on phantom images, in minutes on two CPU cores."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reshift.data.manifest import load_cases
from reshift.data.phantom import write_phantom
from reshift.evaluation.evaluate import evaluate
from reshift.inference.model import load_model
from reshift.inference.score import score
from reshift.system.files import atomic_bytes, writable_folder
from reshift.training.run import resolve, train_run


def demo(out: Path, kind: str = "brain", seed: int = 0, layers: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Phantom data → train → calibrate → score → evaluate → ``out/report.html``; return the metrics.

    A demo that was interrupted continues; one that is finished is done again from its own model.
    """
    writable_folder(out)
    data = out / "data" / kind
    manifest = data / "manifest.csv"
    if not manifest.exists():
        shutil.rmtree(data, ignore_errors=True)  # half-drawn by a run that was killed
        manifest = write_phantom(data, kind, seed=seed)
    config = resolve(None, "quick", [*layers, {"seed": seed}])
    model = load_model(train_run(config, manifest, out / f"run-{kind}-{seed}", resume=True))
    score(model, [manifest], out / f"scores-{kind}-{seed}")
    tests = [case for case in load_cases(manifest) if case.split == "test"]
    metrics, _ = evaluate(model, tests, out / f"evaluation-{kind}-{seed}", f"phantom-{kind}")
    atomic_bytes(out / "report.html", (out / f"evaluation-{kind}-{seed}" / "report.html").read_bytes())
    return metrics
