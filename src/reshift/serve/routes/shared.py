"""What all routes share: the service behind them, who asks, and how a job looks from outside."""

import re
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request

from reshift.serve.errors import ProblemBody
from reshift.serve.jobs import Job
from reshift.serve.middleware import who
from reshift.serve.reviews import iso
from reshift.serve.service import Service
from reshift.serve.views import Where

API = "/api/v1"
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": about, "content": {"application/problem+json": {"schema": ProblemBody.model_json_schema()}}}
    for status, about in {
        400: "not a valid request", 401: "a token is needed", 403: "from another site", 404: "no such thing",
        409: "does not fit its state", 413: "too large", 415: "not a type we take", 421: "not a name of this server",
        422: "refused, with the reason", 429: "busy; see Retry-After", 507: "the disk is full",
    }.items()
}  # fmt: skip


def service_of(request: Request) -> Service:
    """The running service."""
    found: Service = request.app.state.service
    return found


def user_of(request: Request) -> str:
    """Who asks."""
    return who(request)


Running = Annotated[Service, Depends(service_of)]
User = Annotated[str, Depends(user_of)]
JobId = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="identifier of a job")]
CaseId = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="identifier of a case")]
Limit = Annotated[int, Query(ge=1, le=500, description="how many at most")]
Offset = Annotated[int, Query(ge=0, le=10**9, description="how many to leave out")]


def job_json(service: Service, job: Job) -> dict[str, Any]:
    """A job as the API shows it."""
    running = service.dispatcher.running(job.id) if job.state == "queued" else None
    done = job.cases if job.state == "done" else running.done if running else 0
    if job.state in ("cancelled", "failed"):
        done = len(service.cases(job).cases)
    return {
        "id": job.id,
        "kind": job.kind,
        "state": "running" if running else job.state,
        "model": job.model,
        "owner": job.owner,
        "path": job.path,
        "created": iso(job.created),
        "finished": iso(job.finished),
        "cases": job.cases,
        "done": done,
        "failures": job.failures,
        "bytes": job.bytes,
        "sha256": job.sha256,
        "error": job.error,
        "notes": job.notes,
        "url": f"{API}/jobs/{job.id}",
    }


def where_of(service: Service, job: Job, case: str) -> Where:
    """A case as reader processes find it."""
    found = service.cases(job).get(case)
    inputs, _ = service.inputs(job)
    place = found.record["map"]
    heatmap = str(service.store.results(job.id) / place) if place and not re.search(r"(^|/)\.\.(/|$)", place) else None
    return Where(tuple(str(path) for path in inputs), found.source, heatmap)
