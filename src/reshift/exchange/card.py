"""The model card with its metadata, as the hub wants it: YAML between two lines of dashes, then Markdown."""

import json
from collections.abc import Mapping
from typing import Any

from reshift.config import Config
from reshift.evaluation.metrics.table import select_metrics

TAGS = ("anomaly-detection", "medical-imaging", "unsupervised")


def card(text: str, config: Config, metrics: Mapping[str, Any] | None, licence: str | None) -> str:
    """The bundle's own card with metadata; every value of ``metrics`` that is a number becomes a result."""
    about: dict[str, Any] = {"library_name": "reshift", "tags": [*TAGS, config.method]}
    if licence:
        about["license"] = licence
    if metrics is not None:
        about["model-index"] = [{"name": f"reshift {config.method}", "results": [_results(metrics)]}]
    lines = [f"{key}: {json.dumps(value)}" for key, value in about.items()]  # JSON is YAML, too
    return "\n".join(["---", *lines, "---", "", _without_metadata(text)])


def _results(metrics: Mapping[str, Any]) -> dict[str, Any]:
    values = [
        {"type": metric.key, "name": metric.heading, "value": value}
        for metric in select_metrics("image", "pixel")
        if (value := metric.read(metrics)) is not None and not metric.oracle
    ]
    dataset = str(metrics["dataset"])
    return {
        "task": {"type": "image-classification", "name": "anomaly detection"},
        "dataset": {"type": dataset, "name": dataset},
        "metrics": values,
    }


def _without_metadata(text: str) -> str:
    """A card that was pulled has metadata already."""
    return text.split("\n---\n", 1)[1].lstrip("\n") if text.startswith("---\n") and "\n---\n" in text else text
