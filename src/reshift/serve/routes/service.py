"""Sessions of the page, health, metrics, and the page itself."""

from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel

from reshift import __version__
from reshift.serve.auth import COOKIE, SESSION_SECONDS
from reshift.serve.errors import Problem, not_found, problem_response
from reshift.serve.metrics import resident_bytes
from reshift.serve.routes.shared import API, PROBLEMS, Running, User

router = APIRouter(responses=PROBLEMS)
PAGE = files("reshift.serve") / "page"
TYPES = {
    "html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml", "png": "image/png", "ico": "image/x-icon", "json": "application/json",
}  # fmt: skip


class Token(BaseModel):
    """What the page asks its user for."""

    token: str


@router.get(f"{API}/session", tags=["session"])
def show_session(service: Running, user: User) -> dict[str, Any]:
    """Who the server takes the caller for; ``user`` is null where a token is needed first."""
    return {
        "user": None if user == "-" else user,
        "token_needed": bool(service.gate.tokens),
        "version": __version__,
        **_limits(service),
    }


def _limits(service: Any) -> dict[str, Any]:
    limits = service.settings.limits
    return {
        "max_upload_bytes": limits.upload_bytes, "max_files": limits.files, "keep_seconds": service.settings.keep,
        "paths": service.settings.data is not None,
    }  # fmt: skip


@router.post(f"{API}/session", tags=["session"])
def open_session(body: Token, request: Request, service: Running) -> Response:
    """Change a token for a cookie, which scripts of the page cannot read and other sites cannot send."""
    name = service.gate.owner(body.token)
    if name is None:
        service.audit.write("-", "token refused")
        raise Problem(401, "this token is not known")
    response = JSONResponse({"user": name})
    secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
    response.set_cookie(
        COOKIE, service.gate.open_session(name), max_age=int(SESSION_SECONDS), httponly=True, samesite="strict", secure=secure
    )
    service.audit.write(name, "session opened")
    return response


@router.delete(f"{API}/session", tags=["session"], status_code=204)
def close_session(request: Request, service: Running) -> Response:
    """Forget the cookie."""
    service.gate.close_session(request.cookies.get(COOKIE))
    response = Response(status_code=204)
    response.delete_cookie(COOKIE)
    return response


@router.get("/health", tags=["service"])
def health() -> dict[str, str]:
    """The server answers."""
    return {"status": "ok"}


@router.get("/ready", tags=["service"], responses={503: {"description": "not yet"}})
def ready(service: Running) -> Response:
    """Whether jobs are worked on: a worker is up, and the disk has room."""
    if not service.dispatcher.is_ready():
        return problem_response(503, "no worker is ready yet", {"Retry-After": "2"})
    if service.store.free_bytes() < service.settings.limits.free_bytes:
        return problem_response(503, "the disk is full", {"Retry-After": "60"})
    return JSONResponse({"status": "ready"})


@router.get("/metrics", tags=["service"], response_class=PlainTextResponse)
def metrics(service: Running) -> Response:
    """Counters and gauges for Prometheus."""
    running = len(service.dispatcher.all_running())
    gauges = {
        "jobs_waiting": float(len(service.dispatcher.waiting)), "jobs_running": float(running), "uploads": float(service.uploads),
        "workers_ready": float(sum(device.ready for device in service.dispatcher.devices)),
        "resident_bytes": resident_bytes(), "disk_free_bytes": float(service.store.free_bytes()),
    }  # fmt: skip
    return PlainTextResponse(service.metrics.text(gauges), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/", include_in_schema=False)
def index() -> Response:
    """The page."""
    return _page("index.html")


@router.get("/docs", include_in_schema=False)
def docs() -> Response:
    """The endpoints, from the OpenAPI document; nothing is loaded from elsewhere."""
    return _page("docs.html")


@router.get("/page/{name}", include_in_schema=False)
def asset(name: str) -> Response:
    """A file of the page."""
    return _page(name)


def _page(name: str) -> Response:
    known = {path.name: path for path in PAGE.iterdir() if path.is_file()}
    kind = TYPES.get(name.rpartition(".")[2])
    if name not in known or kind is None:
        raise not_found("file")
    return FileResponse(str(known[name]), media_type=kind, headers={"Cache-Control": "no-cache"})
