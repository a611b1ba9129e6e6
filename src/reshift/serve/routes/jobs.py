"""``/jobs``: upload, list, watch, cancel, delete."""

import asyncio
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel

from reshift.serve.accept import accept_path, accept_upload
from reshift.serve.errors import Problem, not_found
from reshift.serve.events import job_events
from reshift.serve.jobs import ENDED
from reshift.serve.routes.shared import API, PROBLEMS, JobId, Limit, Running, User, job_json

router = APIRouter(prefix=f"{API}/jobs", tags=["jobs"], responses=PROBLEMS)

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="the same key gives the same job, however often it is sent",
    ),
]
State = Literal["queued", "running", "done", "failed", "cancelled"]
UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["files"],
                    "properties": {
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        "model": {"type": "string", "description": "name of a model; may be left out if there is one only"},
                        "dicom": {"type": "string", "enum": ["true", "false"], "description": "also make DICOM results"},
                    },
                },
            }
        },
    }
}


class PathJob(BaseModel):
    """A job over images that are on the server already."""

    path: str
    model: str | None = None
    dicom: bool = False


@router.post("", status_code=201, openapi_extra=UPLOAD)
async def upload(
    request: Request, response: Response, service: Running, user: User, idempotency_key: Key = None
) -> dict[str, Any]:
    """Upload images, volumes or zip files, and score them. Nothing is lost once this has answered."""
    job, new = await accept_upload(service, user, request, idempotency_key)
    return _accepted(response, job_json(service, job), new=new)


@router.post("/from-path", status_code=201)
async def from_path(
    body: PathJob, response: Response, service: Running, user: User, idempotency_key: Key = None
) -> dict[str, Any]:
    """Score a file or folder below the server's ``--data``."""
    job, new = await accept_path(service, user, body.path, body.model, dicom=body.dicom, key=idempotency_key)
    return _accepted(response, job_json(service, job), new=new)


def _accepted(response: Response, body: dict[str, Any], *, new: bool) -> dict[str, Any]:
    response.headers["Location"] = body["url"]
    if not new:
        response.status_code = 200
        response.headers["Idempotent-Replay"] = "true"
    return body


@router.get("")
def list_jobs(
    service: Running,
    limit: Limit = 50,
    before: Annotated[int | None, Query(ge=0, le=2**60)] = None,
    state: State | None = None,
    kind: Literal["score", "evaluate"] | None = None,
) -> dict[str, Any]:
    """The newest jobs first; ``next`` is the ``before`` of the next page."""
    running = service.dispatcher.all_running()
    states = ("queued", *ENDED) if state is None else ("queued",) if state == "running" else (state,)
    kinds = ("score", "evaluate") if kind is None else (kind,)
    without = running if state == "queued" else ()
    found = service.jobs.page(limit=limit + 1, before=before, states=states, kinds=kinds, without=without)
    if state == "running":
        found = [job for job in found if job.id in running]
    page = found[:limit]
    return {"items": [job_json(service, job) for job in page], "next": page[-1].number if len(found) > limit else None}


@router.get("/{job}")
async def show_job(
    job: JobId, service: Running, wait: Annotated[float, Query(ge=0, le=60, description="seconds to wait for its end")] = 0.0
) -> dict[str, Any]:
    """State and progress; with ``wait``, answered when the job has ended or the time is over."""
    deadline = time.monotonic() + wait
    while True:
        found = service.job(job)
        if found.state in ENDED or time.monotonic() >= deadline:
            return await asyncio.to_thread(job_json, service, found)
        await service.dispatcher.ended_within(job, deadline - time.monotonic())


@router.get("/{job}/events")
async def watch_job(job: JobId, service: Running) -> StreamingResponse:
    """Server-sent events: ``job`` whenever something changed, until the job has ended."""
    service.job(job)
    return StreamingResponse(job_events(service, job), media_type="text/event-stream")


@router.post("/{job}/cancel")
async def cancel_job(job: JobId, service: Running, user: User) -> dict[str, Any]:
    """Stop a job; what is scored so far stays."""
    found = service.job(job)
    if found.state in ENDED:
        raise Problem(409, f"the job is {found.state} already")
    await asyncio.to_thread(service.dispatcher.cancel, job)
    service.audit.write(user, "job cancelled", job=job, sha256=found.sha256)
    return job_json(service, service.job(job))


@router.delete("/{job}", status_code=204)
async def delete_job(job: JobId, service: Running, user: User) -> Response:
    """Remove a job with its uploads, results and reviews. When this has answered they are gone."""
    found = service.job(job)
    await service.delete(job)
    service.audit.write(user, "job deleted", job=job, sha256=found.sha256)
    return Response(status_code=204)


@router.get("/{job}/scores.jsonl", response_class=FileResponse)
def records(job: JobId, service: Running) -> Response:
    """The records as ``reshift score`` writes them, with files named as they were sent."""
    found = service.job(job)
    path = service.store.results(job) / "scores.jsonl"
    if not path.is_file():
        raise not_found("result yet")
    _, hidden = service.inputs(found)
    text = path.read_text(encoding="utf-8").replace(f"{hidden}/", "")
    return Response(text, media_type="application/jsonl")
