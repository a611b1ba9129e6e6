"""``/evaluations``: a labelled test split through a model; metrics and a report. An evaluation is a job of its own kind."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel

from reshift.config import read_json
from reshift.serve.accept import accept_path
from reshift.serve.errors import Problem, not_found
from reshift.serve.routes.shared import API, PROBLEMS, JobId, Running, User, job_json

router = APIRouter(prefix=f"{API}/evaluations", tags=["evaluations"], responses=PROBLEMS)
SANDBOX = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


class Evaluation(BaseModel):
    """A manifest or dataset folder below the server's ``--data``, with labelled rows in split ``test``."""

    path: str
    model: str | None = None


@router.post("", status_code=201)
async def start_evaluation(body: Evaluation, response: Response, service: Running, user: User) -> dict[str, Any]:
    """Evaluate; watch it as a job."""
    job, _ = await accept_path(service, user, body.path, body.model, dicom=False, key=None, kind="evaluate")
    response.headers["Location"] = f"{API}/jobs/{job.id}"
    return job_json(service, job)


@router.get("/{job}")
def show_evaluation(job: JobId, service: Running) -> dict[str, Any]:
    """The job and, once it is done, its metrics."""
    found = service.job(job)
    if found.kind != "evaluate":
        raise not_found("evaluation")
    path = service.store.results(job) / "metrics.json"
    return {**job_json(service, found), "metrics": read_json(path.read_bytes()) if path.is_file() else None}


@router.get("/{job}/report.html", response_class=FileResponse)
def report(job: JobId, service: Running) -> Response:
    """The report, as a page that can reach nothing of this site."""
    if service.job(job).kind != "evaluate":
        raise not_found("evaluation")
    path = service.store.results(job) / "report.html"
    if not path.is_file():
        raise Problem(409, "the evaluation has no report yet")
    return FileResponse(path, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": SANDBOX})
