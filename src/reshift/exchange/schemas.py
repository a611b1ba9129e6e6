"""JSON Schemas of the files that we write, made from the code that writes them."""

from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from reshift.config import Config
from reshift.data.manifest import Row
from reshift.evaluation.metrics.table import select_metrics
from reshift.inference.calibration import Calibration
from reshift.inference.inputs import Content
from reshift.inference.records import EARLIER_FIELDS, FIELDS
from reshift.inference.result import Assessment

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
NUMBER, INTERVAL = {"type": ["number", "null"]}, {"type": ["array", "null"], "items": {"type": "number"}, "maxItems": 2}


def config() -> Schema:
    """Settings, as in a TOML file and under ``config`` in a bundle's config.json; ``model`` is the method's own."""
    return Config.model_json_schema()


def calibration() -> Schema:
    """``calibration.json`` of a bundle."""
    found = Calibration.model_json_schema()
    found["properties"]["sha256"] = {"type": "string", "description": "of all other values"}
    return found


def manifest() -> Schema:
    """One row of ``manifest.csv``; an empty field is left out."""
    return {**Row.model_json_schema(), "additionalProperties": False}


def scores() -> Schema:
    """One line of ``scores.jsonl``."""
    own = {"slice": int, "score": float, "map": str, "seconds": float, "error": str}
    types: dict[str, Any] = {**get_type_hints(Content), **get_type_hints(Assessment), **own}
    known = {name: TypeAdapter(types[name] | None).json_schema() for name in FIELDS if name in types}
    known["input"] = {"type": "string"}
    properties = {name: known.get(name, {}) for name in FIELDS}
    return {"type": "object", "properties": properties, "required": list(EARLIER_FIELDS[-1]), "additionalProperties": False}


def metrics() -> Schema:
    """``metrics.json`` of an evaluation."""

    def table(values: dict[str, Any], *, nullable: bool = False) -> Schema:
        return {"type": ["object", "null"] if nullable else "object", "properties": values}

    count = {"type": "integer", "minimum": 0}
    levels = {level: table({metric.name: NUMBER for metric in select_metrics(level)}) for level in ("image", "pixel")}
    bounds = {
        level: table({metric.name: INTERVAL for metric in select_metrics(level)}, nullable=True) for level in ("image", "pixel")
    }
    properties = {
        **levels,
        "n": table(dict.fromkeys(("normal", "abnormal", "subjects", "pixels"), count)),
        "intervals": table({"level": {"type": "number"}, **bounds}),
        "lesions": {"type": ["object", "null"]},
        "normative": {"type": ["object", "null"]},
        "warnings": {"type": "array", "items": {"type": "string"}},
        **{name: {"type": "string"} for name in ("method", "model_sha256", "dataset")},
        "settings": {"type": "object"},
        "seed": count,
        "seconds": {"type": "number", "minimum": 0},
    }
    return {**table(properties), "required": ["image", "pixel", "n", "method", "dataset", "seed", "seconds"]}


SCHEMAS: dict[str, Callable[[], Schema]] = {
    "calibration": calibration, "config": config, "manifest": manifest, "metrics": metrics, "scores": scores,
}  # fmt: skip


def schema(name: str) -> Schema:
    """The schema called ``name``, with what it describes."""
    made = SCHEMAS[name]
    about = {"$schema": DIALECT, "$id": f"reshift/{name}", "title": name, "description": (made.__doc__ or "").strip()}
    return {**made(), **about}
