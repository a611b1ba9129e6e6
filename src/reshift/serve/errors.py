"""Every refusal is ``application/problem+json`` (RFC 9457) with one line that says what is wrong and what to do."""

import errno
import logging
import sqlite3
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from reshift.errors import UserError

log = logging.getLogger("reshift.serve")


class ProblemBody(BaseModel):
    """What a refusal looks like."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[str] = []  # one line for each of several things that are wrong


class Problem(Exception):  # noqa: N818 (the name of the format)
    """A refusal with a status; ``detail`` is one line."""

    def __init__(
        self, status: int, detail: str, *, headers: dict[str, str] | None = None, errors: list[str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers, self.errors = status, detail, headers or {}, errors or []


def not_found(what: str) -> Problem:
    """There is no such thing, or no more."""
    return Problem(404, f"no such {what}; it may have been deleted")


def busy(detail: str, seconds: float) -> Problem:
    """Come back later."""
    return Problem(429, detail, headers={"Retry-After": str(max(1, round(seconds)))})


def problem_response(
    status: int, detail: str, headers: dict[str, str] | None = None, errors: list[str] | None = None
) -> Response:
    """The answer to a request that is refused."""
    body: dict[str, Any] = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    if errors:
        body["errors"] = errors
    return JSONResponse(body, status, headers, media_type="application/problem+json")


def disk_problem(err: OSError | sqlite3.Error) -> Problem:
    """A disk that is full or fails is the server's state, not a mistake of its code or of the user."""
    code = getattr(err, "errno", None)
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or getattr(err, "sqlite_errorname", "") == "SQLITE_FULL":
        line, status = "the server's disk is full; delete jobs, or ask who runs it to make room", 507
    elif code in (errno.EIO, errno.EROFS) or isinstance(err, sqlite3.OperationalError):
        line, status = "the server's disk does not work at the moment; try again later, or tell who runs it", 503
    else:
        raise err
    log.error("%s: %s", line, err)
    return Problem(status, line, headers={"Retry-After": "60"})


def add_handlers(app: FastAPI) -> None:
    """Turn every exception into a problem."""

    async def problem(_: Request, err: Problem) -> Response:
        return problem_response(err.status, err.detail, err.headers, err.errors)

    async def mistake(_: Request, err: UserError) -> Response:
        return problem_response(422, str(err))

    async def http(_: Request, err: HTTPException) -> Response:
        return problem_response(err.status_code, str(err.detail), dict(err.headers or {}))

    async def invalid(_: Request, err: RequestValidationError) -> Response:
        lines = [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in err.errors()]
        return problem_response(422, lines[0] if lines else "the request is not valid", errors=lines)

    async def disk(_: Request, err: OSError | sqlite3.Error) -> Response:
        found = disk_problem(err)
        return problem_response(found.status, found.detail, found.headers)

    async def crash(_: Request, err: Exception) -> Response:
        log.error("a request failed", exc_info=err)
        return problem_response(500, f"the server made a mistake ({type(err).__name__}); its log says more")

    handlers: dict[Any, Any] = {
        Problem: problem, UserError: mistake, HTTPException: http, RequestValidationError: invalid, OSError: disk,
        sqlite3.Error: disk, Exception: crash,
    }  # fmt: skip
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
