"""``/trainings``: start, watch, stop, resume."""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from reshift.methods import METHODS
from reshift.serve.events import log_events
from reshift.serve.routes.shared import API, PROBLEMS, Running, User
from reshift.serve.trainings import read_log

router = APIRouter(prefix=f"{API}/trainings", tags=["trainings"], responses=PROBLEMS)


class Start(BaseModel):
    """A training over normal images below the server's ``--data``."""

    name: Annotated[str, Field(max_length=80)]  # of the run, and of the model it gives
    data: str
    method: str = "reshift"
    profile: Literal["paper", "quick"] = "quick"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    config: dict[str, Any] = {}  # settings as in a TOML file: {"train": {"lr": 1e-4}}


@router.get("")
def list_trainings(service: Running) -> dict[str, Any]:
    """Every run below ``--models`` that has a log, and the methods that a new one may use."""
    methods = [{"name": name, "about": entry.summary} for name, entry in METHODS.items()]
    return {"items": service.trainings.all(), "methods": methods}


@router.post("", status_code=201)
def start_training(body: Start, service: Running, user: User) -> dict[str, Any]:
    """Train in a process of its own; the bundle appears among the models."""
    service.trainings.start(body.name, user, body.model_dump())
    service.audit.write(user, "training started", training=body.name)
    return service.trainings.show(body.name)


@router.get("/{name}")
def show_training(name: str, service: Running) -> dict[str, Any]:
    """``state``: running, done, stopped or failed; ``last``: the last line of the log."""
    return service.trainings.show(name)


@router.get("/{name}/log")
def show_log(name: str, service: Running, after: Annotated[int, Query(ge=0, le=10**9)] = 0) -> dict[str, Any]:
    """The lines of the log from number ``after`` on."""
    lines = list(read_log(service.trainings.log_path(name)))
    return {"items": lines[after:], "total": len(lines)}


@router.get("/{name}/events")
async def watch(
    name: str, service: Running, last_event_id: Annotated[int, Header(alias="Last-Event-ID", ge=0, le=10**9)] = 0
) -> StreamingResponse:
    """Server-sent events: ``log`` per line, ``state`` on every change, until the training has ended."""
    await asyncio.to_thread(service.trainings.show, name)
    return StreamingResponse(log_events(service, name, last_event_id), media_type="text/event-stream")


@router.post("/{name}/stop")
def stop(name: str, service: Running, user: User) -> dict[str, Any]:
    """Write a checkpoint and end; it can be resumed."""
    service.trainings.stop(name)
    service.audit.write(user, "training stopped", training=name)
    return service.trainings.show(name)


@router.post("/{name}/resume")
def resume(name: str, service: Running, user: User) -> dict[str, Any]:
    """Continue where it stopped."""
    service.trainings.resume(name)
    service.audit.write(user, "training resumed", training=name)
    return service.trainings.show(name)
