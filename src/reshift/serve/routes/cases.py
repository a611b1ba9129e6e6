"""``/jobs/ID/cases``: results, images, heat-maps and their formats."""

import asyncio
import base64
import secrets
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query
from fastapi.responses import FileResponse, Response

from reshift.config import read_json
from reshift.inference.inputs import result_stem
from reshift.serve import exports, views
from reshift.serve.cases import SORTS, Case, case_json
from reshift.serve.errors import Problem, not_found
from reshift.serve.jobs import Job
from reshift.serve.routes.shared import API, PROBLEMS, CaseId, JobId, Limit, Offset, Running, where_of
from reshift.serve.service import Service

router = APIRouter(prefix=f"{API}/jobs/{{job}}", tags=["cases"], responses=PROBLEMS)

Plane = Annotated[Literal["axial", "coronal", "sagittal"], Query(description="of a volume; an image has one axial plane")]
Index = Annotated[int, Query(ge=0, le=10**6, description="slice, counted from inferior, anterior or the patient's right")]
BINARY: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
PNG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}}


@router.get("/cases")
def list_cases(
    job: JobId,
    service: Running,
    limit: Limit = 100,
    offset: Offset = 0,
    sort: Literal["index", "name", "score"] = "index",
    flag: Annotated[bool | None, Query(description="only cases that are flagged, or that are not")] = None,
    error: Annotated[bool | None, Query(description="only cases that failed, or that did not")] = None,
    reviewed: Annotated[bool | None, Query(description="only cases that have a review, or that have none")] = None,
) -> dict[str, Any]:
    """The cases scored so far; ``sort=score`` puts the highest first."""
    found, reviews = service.job(job), service.reviews.of(job)
    rows = [_case(job, case, reviews) for case in sorted(service.cases(found).cases, key=SORTS[sort])]
    rows = [row for row in rows if flag is None or bool(row["flag"]) == flag]
    rows = [row for row in rows if error is None or (row["error"] is not None) == error]
    rows = [row for row in rows if reviewed is None or (row["review"] is not None) == reviewed]
    page = rows[offset : offset + limit]
    return {"items": page, "total": len(rows), "next": offset + limit if offset + limit < len(rows) else None, **_scale(found)}


@router.get("/cases/{case}")
async def show_case(job: JobId, case: CaseId, service: Running) -> dict[str, Any]:
    """One case with its grid and, of a volume, the score of every slice."""
    found = service.job(job)
    one = service.cases(found).get(case)
    body = {**_case(job, one, service.reviews.of(job)), **_scale(found), "grid": None, "slice_scores": []}
    body["findings"] = [item for item in _findings(service, found) if item.get("input") in (one.source, one.name, None)]
    if one.record["error"] is None:
        where = where_of(service, found, case)
        grid = await service.readers.call(job, views.describe, where)
        measured = [item for item in body["findings"] if "peak_at" in item]
        places = await service.readers.call(job, views.locate, where, [item["peak_at"] for item in measured])
        for item, place in zip(measured, places, strict=True):
            item["at"] = place
        last = grid["shape"][0] - 1
        fields = ("slice", "score", "p_value", "flag")
        body["grid"] = {name: value for name, value in grid.items() if name != "flipped"}
        body["slice_scores"] = sorted(
            ({"index": last - r["slice"] if grid["flipped"] else r["slice"], **{k: r[k] for k in fields}} for r in one.slices),
            key=lambda row: int(row["index"]),
        )
    return body


@router.get("/cases/{case}/image", responses=BINARY)
async def image(job: JobId, case: CaseId, service: Running, plane: Plane = "axial", index: Index = 0) -> Response:
    """A plane of the image as 16-bit levels; the headers say their scale."""
    return _values(await service.readers.call(job, views.image_values, _where(service, job, case), plane, index))


@router.get("/cases/{case}/heat", responses=BINARY)
async def heat(job: JobId, case: CaseId, service: Running, plane: Plane = "axial", index: Index = 0) -> Response:
    """The same plane of the heat-map; level 65535 is "no value"."""
    return _values(await service.readers.call(job, views.heat_values, _where(service, job, case), plane, index))


@router.get("/cases/{case}/prepared", responses=BINARY)
async def prepared(job: JobId, case: CaseId, service: Running, index: Index = 0) -> Response:
    """What the network saw of an axial slice."""
    data = service.job(job).options["data"]
    return _values(await service.readers.call(job, views.prepared_values, _where(service, job, case), index, data))


@router.get("/cases/{case}/restoration", responses=BINARY)
async def restoration(
    job: JobId,
    case: CaseId,
    service: Running,
    index: Index = 0,
    grid: Annotated[Literal["prepared", "image"], Query(description="whose pixels: the network's or the image's")] = "prepared",
) -> Response:
    """The prepared slice as it would look without disease, where the model's method restores; 409 where not."""
    found, where = service.job(job), _where(service, job, case)
    pixels = await service.readers.call(job, views.prepared_pixels, where, index, found.options["data"])
    message = {"kind": "restore", "model": str(service.models.folder / found.options["bundle"]), "shape": list(pixels.shape)}
    message["pixels"] = base64.b64encode(pixels.tobytes()).decode()
    answer = await asyncio.to_thread(service.dispatcher.ask, secrets.token_hex(8), message)
    if answer["state"] != "done":
        raise Problem(409, answer["error"])
    restored = np.frombuffer(base64.b64decode(answer["pixels"]), np.float32).reshape(answer["shape"])
    if grid == "image":
        return _values(await service.readers.call(job, views.on_own_grid, where, index, found.options["data"], restored))
    return _values(views.levels(restored.transpose(1, 2, 0), -1.0, 1.0, (1.0, 1.0)))


@router.get("/cases/{case}/overlay.png", responses=PNG)
async def overlay(job: JobId, case: CaseId, service: Running, index: Index = 0, heat: bool = True) -> Response:
    """An axial slice as a picture, with its heat-map on the model's own colour scale."""
    colours = _colours(service.job(job)) if heat else None
    content = await service.readers.call(job, views.picture, _where(service, job, case), index, colours)
    return Response(content, media_type="image/png")


@router.get("/cases/{case}/thumbnail.png", responses=PNG)
async def thumbnail(
    job: JobId, case: CaseId, service: Running, side: Annotated[int, Query(ge=16, le=512)] = 96, heat: bool = True
) -> Response:
    """A small picture; of a volume, the slice with the highest score."""
    found = service.job(job)
    one = service.cases(found).get(case)
    where, index = _where(service, job, case), 0
    if one.slices:
        grid = await service.readers.call(job, views.describe, where)
        top = max(one.slices, key=lambda record: float(record["score"]))["slice"]
        index = grid["shape"][0] - 1 - top if grid["flipped"] else top
    content = await service.readers.call(job, views.picture, where, index, _colours(found) if heat else None, side)
    return Response(content, media_type="image/png", headers={"Cache-Control": "private, max-age=3600"})


@router.get("/cases/{case}/map", responses=BINARY)
async def heatmap(
    job: JobId,
    case: CaseId,
    service: Running,
    format: Literal["npy", "nifti", "png", "dicom"] = "npy",  # noqa: A002
) -> Response:
    """The heat-map as a file: NumPy, NIfTI on the scan's own grid, the overlay as PNG, or a zip of DICOM results."""
    one, where = service.cases(service.job(job)).get(case), _where(service, job, case)
    results, target = service.store.results(job), service.store.job(job) / "cache" / case
    name = one.record["map"].removeprefix("maps/").removesuffix(".npy")
    if format == "png":
        path = results / "overlays" / f"{result_stem(name)}.png"
        return _file(path, "image/png", f"{case}.png")
    if format == "dicom":
        path = await service.readers.call(job, exports.as_dicom, results / "dicom" / name.removesuffix(".nii.gz"), target)
        return _file(path, "application/zip", f"{case}-dicom.zip")
    if format == "nifti":
        path = await service.readers.call(job, exports.as_nifti, where, target)
        return _file(path, "application/gzip", f"{case}.nii.gz")
    return _file(await service.readers.call(job, exports.as_npy, where, target), "application/octet-stream", f"{case}.npy")


@router.get("/findings")
def findings(job: JobId, service: Running) -> dict[str, Any]:
    """What ``findings.json`` says, where the job has one."""
    return {"items": _findings(service, service.job(job))}


def _findings(service: Service, job: Job) -> list[dict[str, Any]]:
    path, (_, hidden) = service.store.results(job.id) / "findings.json", service.inputs(job)
    if not path.is_file():
        return []
    found = read_json(path.read_text(encoding="utf-8").replace(f"{hidden}/", ""))
    rows = found.get("findings", []) if isinstance(found, dict) else found
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _case(job: str, case: Case, reviews: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return case_json(case, reviews.get(case.id), f"{API}/jobs/{job}/cases/{case.id}")


def _scale(job: Job) -> dict[str, Any]:
    return {name: job.options.get(name) for name in ("image_threshold", "pixel_threshold", "heat_scale")}


def _colours(job: Job) -> tuple[float, float] | None:
    """Threshold and full colour of heat-maps; None without a calibration."""
    threshold, scale = job.options["pixel_threshold"], job.options["heat_scale"]
    return None if threshold is None or scale is None else (threshold, scale)


def _where(service: Service, job: str, case: str) -> views.Where:
    found = where_of(service, service.job(job), case)
    if found.map is None:
        raise Problem(409, "the case could not be scored, so there is nothing to show; see its error")
    return found


def _values(values: views.Values) -> Response:
    headers = {
        "X-Shape": ",".join(str(n) for n in values.shape),
        "X-Scale": repr(values.scale),
        "X-Offset": repr(values.offset),
        "X-Spacing": ",".join(f"{step:g}" for step in values.spacing),
        "Cache-Control": "private, max-age=3600",
    }
    return Response(values.levels, media_type="application/octet-stream", headers=headers)


def _file(path: Path, kind: str, name: str) -> Response:
    """A download under a name of ours, never under a type that was guessed."""
    if not path.is_file():
        raise not_found("file")
    return FileResponse(path, media_type=kind, filename=name)
