"""The way of a job into the database: receive, examine, give it its place, and only then say yes."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

from fastapi import Request

from reshift.config import Config
from reshift.serve.errors import Problem, busy
from reshift.serve.intake import examine, examine_upload
from reshift.serve.jobs import Job
from reshift.serve.models import Known
from reshift.serve.service import Service
from reshift.serve.store import below
from reshift.serve.uploads import Upload, receive


async def accept_upload(service: Service, user: str, request: Request, key: str | None) -> tuple[Job, bool]:
    """Take an upload; return the job, and whether it is new."""
    check_room(service)
    service.uploads += 1
    try:
        identifier, folder = service.store.new_upload()
        try:
            upload = await receive(request, folder / "inputs", service.settings.limits)
            before = service.jobs.with_key(user, key)
            if before is not None:
                return _same(before, upload.sha256), False
            return await _accept(service, user, identifier, upload, key)
        finally:
            if (service.store.incoming / identifier).exists():
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, service.store.incoming / identifier, ignore_errors=True))
    finally:
        service.uploads -= 1


async def _accept(service: Service, user: str, identifier: str, upload: Upload, key: str | None) -> tuple[Job, bool]:
    if not upload.files:
        raise Problem(422, "no files in the upload; send them as 'files'")
    model, config = service.models.usable(upload.fields.get("model"))
    limits, names = service.settings.limits, [str(name) for name in upload.files]
    found = await service.readers.call(
        identifier, examine_upload, upload.folder, names, config.data.model_dump(), limits.files, limits.upload_bytes
    )
    _refuse_unreadable(found)
    options = _options(service, model, config, dicom=upload.fields.get("dicom") == "true")
    await asyncio.to_thread(service.store.accept, identifier)
    try:
        job = await asyncio.to_thread(
            lambda: service.jobs.add(
                identifier, kind="score", owner=user, model=model.name, path=None, options=options, cases=found["cases"],
                size=upload.bytes, sha256=upload.sha256, key=key, notes=found["notes"],
            )
        )  # fmt: skip
    except BaseException:
        service.store.discard(identifier)
        raise
    if job.id != identifier:  # the same key came twice at the same time
        service.store.discard(identifier)
        return _same(job, upload.sha256), False
    service.metrics.upload_bytes += upload.bytes
    return _announce(service, user, job, len(names)), True


async def accept_path(
    service: Service, user: str, path: str, model_name: str | None, *, dicom: bool, key: str | None, kind: str = "score"
) -> tuple[Job, bool]:
    """Take a file or folder that is on the server already."""
    check_room(service)
    if service.settings.data is None:
        raise Problem(422, "the server was started without --data, so no path can be named; upload the files")
    place = below(service.settings.data, path)
    model, config = service.models.usable(model_name)
    hidden, limits = service.settings.data.resolve(), service.settings.limits
    before = service.jobs.with_key(user, key)
    if before is not None:
        return _same(before, _path_hash(path, model.name)), False
    identifier, _ = service.store.new_upload()
    try:
        found = await service.readers.call(identifier, examine, [place], config.data.model_dump(), hidden, limits.files)
        _refuse_unreadable(found)
    except BaseException:
        service.store.discard(identifier)
        raise
    service.store.accept(identifier)
    options = _options(service, model, config, dicom=dicom)
    job = service.jobs.add(
        identifier, kind=kind, owner=user, model=model.name, path=str(place.relative_to(hidden)), options=options,
        cases=found["cases"], size=_size(place), sha256=_path_hash(path, model.name), key=key, notes=found["notes"],
    )  # fmt: skip
    return _announce(service, user, job, found["cases"]), True


def check_room(service: Service) -> None:
    """Refuse rather than let the queue or the disk fill up."""
    limits, waiting = service.settings.limits, len(service.dispatcher.waiting)
    if waiting >= limits.queued:
        service.metrics.refused += 1
        raise busy(f"{waiting:,} jobs are waiting; try again later", service.dispatcher.wait_seconds())
    if service.uploads >= limits.uploads:
        service.metrics.refused += 1
        raise busy(f"{service.uploads} uploads at the same time; try again in a moment", 1.0)
    if service.store.free_bytes() < limits.free_bytes:
        raise Problem(
            507, "the server's disk is full; delete jobs, or ask who runs it to make room", headers={"Retry-After": "60"}
        )


def _refuse_unreadable(found: dict[str, Any]) -> None:
    refused: list[str] = found["refused"]
    if refused:
        raise Problem(422, refused[0], errors=refused if len(refused) > 1 else [])


def _same(job: Job, sha256: str) -> Job:
    if job.sha256 != sha256:
        raise Problem(422, "this Idempotency-Key was used for another upload; take a new one")
    return job


def _options(service: Service, model: Known, config: Config, *, dicom: bool) -> dict[str, Any]:
    """What the job keeps of its model: results are shown with the settings and the scale of then."""
    bundle = model.path.relative_to(service.models.folder).as_posix()
    calibration = model.calibration
    chosen = calibration.reference if calibration else None
    thresholds = {
        "image_threshold": chosen.image_threshold if chosen else None,
        "pixel_threshold": chosen.pixel_threshold if chosen else None,
        "heat_scale": model.heat_scale,
        "model_sha256": model.sha256,
    }
    return {"bundle": bundle, "dicom": dicom, "data": config.data.model_dump(mode="json"), **thresholds}


def _announce(service: Service, user: str, job: Job, files: int) -> Job:
    service.audit.write(user, "job accepted", job=job.id, sha256=job.sha256, files=files, bytes=job.bytes, model=job.model)
    service.dispatcher.add(job)
    return job


def _path_hash(path: str, model: str) -> str:
    import hashlib

    return hashlib.sha256(f"{model}\0{path}".encode("utf-8", "surrogatepass")).hexdigest()


def _size(place: Path) -> int:
    return place.stat().st_size if place.is_file() else sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
