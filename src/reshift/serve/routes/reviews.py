"""Reviews: accept or reject a case, and export the decisions."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, Field

from reshift.serve.auth import LOCAL
from reshift.serve.errors import not_found
from reshift.serve.reviews import as_csv
from reshift.serve.routes.shared import API, PROBLEMS, CaseId, JobId, Running, User

router = APIRouter(prefix=f"{API}/jobs/{{job}}", tags=["reviews"], responses=PROBLEMS)


class Review(BaseModel):
    """A decision about one case."""

    verdict: Literal["accept", "reject"]
    note: Annotated[str, Field(max_length=4_000)] = ""
    rating: Annotated[int | None, Field(ge=1, le=5)] = None
    reviewer: Annotated[str, Field(max_length=100)] = ""  # where nobody needs a token; otherwise the token's name counts


@router.put("/cases/{case}/review")
def put_review(job: JobId, case: CaseId, body: Review, service: Running, user: User) -> dict[str, Any]:
    """Accept or reject a case; a second review replaces the first."""
    one = service.cases(service.job(job)).get(case)
    reviewer = (body.reviewer.strip() or LOCAL) if user == LOCAL else user
    found = service.reviews.put(job, case, one.name, verdict=body.verdict, rating=body.rating, note=body.note, reviewer=reviewer)
    service.audit.write(user, f"case {body.verdict}ed", job=job, case=case, sha256=one.record.get("sha256"))
    return found


@router.delete("/cases/{case}/review", status_code=204)
def delete_review(job: JobId, case: CaseId, service: Running, user: User) -> Response:
    """Take a review back."""
    service.cases(service.job(job)).get(case)
    if not service.reviews.remove(job, case):
        raise not_found("review")
    service.audit.write(user, "review removed", job=job, case=case)
    return Response(status_code=204)


@router.get("/reviews.csv", responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}, response_class=Response)
def export(job: JobId, service: Running) -> Response:
    """Every case with its review, for a spreadsheet."""
    found, reviews = service.job(job), service.reviews.of(job)
    rows = [
        {**{name: case.record.get(name) for name in ("score", "p_value", "flag")}, "job": job, "case": case.id, "name": case.name,
         **reviews.get(case.id, {})}
        for case in service.cases(found).cases
    ]  # fmt: skip
    headers = {"Content-Disposition": f'attachment; filename="reviews-{job}.csv"'}
    return Response(as_csv(rows), media_type="text/csv; charset=utf-8", headers=headers)
