"""Server-sent events: what changes, told as it changes."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from reshift.serve.jobs import ENDED
from reshift.serve.service import Service
from reshift.serve.trainings import read_log

PULSE_SECONDS = 15.0  # a comment now and then, or a proxy would take the connection for dead
LOOK_SECONDS = 0.25


def event(name: str, value: Any, number: int | None = None) -> bytes:
    """One event."""
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {name}\ndata: {json.dumps(value)}\n\n".encode()


async def job_events(service: Service, identifier: str) -> AsyncIterator[bytes]:
    """``job`` whenever it has changed; ``deleted`` if it is gone."""
    from reshift.serve.routes.shared import job_json

    before, quiet = None, 0.0
    while True:
        job = service.jobs.get(identifier)
        if job is None:
            yield event("deleted", {"id": identifier})
            return
        now = await asyncio.to_thread(job_json, service, job)
        if now != before:
            yield event("job", now)
            before, quiet = now, 0.0
        if job.state in ENDED:
            return
        await service.dispatcher.ended_within(identifier, LOOK_SECONDS)
        quiet += LOOK_SECONDS
        if quiet >= PULSE_SECONDS:
            yield b": still here\n\n"
            quiet = 0.0


async def log_events(service: Service, name: str, after: int) -> AsyncIterator[bytes]:
    """``log`` per line of a training's log, numbered from 1; ``reset`` when a resume has taken lines back; ``state``."""
    sent, before, quiet = after, None, 0.0
    while True:
        now = await asyncio.to_thread(service.trainings.show, name)
        lines = list(await asyncio.to_thread(lambda: list(read_log(service.trainings.log_path(name)))))
        if len(lines) < sent:
            yield event("reset", {"lines": len(lines)})
            sent = 0
        for line in lines[sent:]:
            sent += 1
            yield event("log", line, sent)
            quiet = 0.0
        if now["state"] != before:
            before = now["state"]
            yield event("state", {key: now[key] for key in ("name", "state", "error")})
        if before != "running":
            return
        await asyncio.sleep(LOOK_SECONDS)
        quiet += LOOK_SECONDS
        if quiet >= PULSE_SECONDS:
            yield b": still here\n\n"
            quiet = 0.0
