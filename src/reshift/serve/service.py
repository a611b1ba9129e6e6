"""Everything a running server has, in one place that the routes share."""

import asyncio
import logging
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from reshift.serve import cases, views
from reshift.serve.audit import Audit
from reshift.serve.auth import Gate
from reshift.serve.dispatch import Dispatcher
from reshift.serve.errors import not_found
from reshift.serve.intake import roots
from reshift.serve.jobs import Database, Job, Jobs
from reshift.serve.metrics import Metrics
from reshift.serve.models import Models
from reshift.serve.readers import Readers
from reshift.serve.reviews import Reviews
from reshift.serve.settings import Settings
from reshift.serve.store import Store, below
from reshift.serve.trainings import Trainings

log = logging.getLogger("reshift.serve")
SWEEP_SECONDS = 60.0


class Service:
    """The parts, started and ended together."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings, self.store, self.gate, self.metrics = settings, store, Gate(settings), Metrics()
        self.database = Database(store.database)
        self.jobs, self.reviews = Jobs(self.database), Reviews(self.database)
        self.audit, self.models, self.readers = Audit(store.audit), Models(settings.models), Readers()
        self.trainings = Trainings(settings.models, settings.data, store.root / "trainings")
        for identifier in self.jobs.being_deleted():
            self._purge(identifier)
        store.remove_strangers(self.jobs.identifiers())
        self.dispatcher = Dispatcher(self.jobs, store, settings.device, self.message, self.public, self.audit, self.metrics)
        self.uploads = 0  # being received
        self.started = time.time()

    async def run(self) -> None:
        """Start the processes, and remove what is due from time to time; ended by cancellation."""
        await asyncio.to_thread(self.dispatcher.start)
        await asyncio.to_thread(self.readers.start)
        while True:
            try:
                await self.remove_expired()
            except OSError as err:
                log.error("expired jobs could not be removed: %s", err)
            await asyncio.sleep(min(SWEEP_SECONDS, (self.settings.keep or SWEEP_SECONDS) / 2))

    def close(self) -> None:
        """End the processes."""
        self.dispatcher.close()
        self.trainings.close()
        self.readers.close()
        self.database.close()

    # ---- jobs ----

    def job(self, identifier: str) -> Job:
        """A job, or a problem 404."""
        found = self.jobs.get(identifier)
        if found is None:
            raise not_found("job")
        return found

    def inputs(self, job: Job) -> tuple[list[Path], Path]:
        """What a job scores, and the folder whose name its users do not see."""
        if job.path is not None:
            assert self.settings.data is not None
            return [below(self.settings.data, job.path)], self.settings.data.resolve()
        folder = self.store.inputs(job.id)
        return roots(folder), folder

    def message(self, job: Job) -> dict[str, Any]:
        """What a worker is told of a job."""
        inputs, _ = self.inputs(job)
        return {
            "kind": job.kind, "model": str(self.models.folder / job.options["bundle"]), "inputs": [str(path) for path in inputs],
            "out": str(self.store.results(job.id)), "dicom": bool(job.options.get("dicom")), "cases": job.cases,
        }  # fmt: skip

    def public(self, text: str) -> str:
        """A line without the server's own paths: files as users name them."""
        text = re.sub(rf"{re.escape(str(self.store.jobs))}/[0-9a-f]{{16}}/(inputs|results)(/|\b)", "", text)
        for folder in (self.models.folder, self.settings.data):
            text = text if folder is None else text.replace(f"{folder.resolve()}/", "")
        return text

    def cases(self, job: Job) -> cases.CaseList:
        """What is scored of a job so far."""
        return cases.read_cases(self.store.results(job.id), self.inputs(job)[1])

    async def delete(self, identifier: str) -> None:
        """Remove a job: when this returns nothing of it is on the disk or in memory."""
        if not self.jobs.begin_deletion(identifier):
            raise not_found("job")
        await asyncio.to_thread(self.dispatcher.cancel, identifier)
        await self.readers.all(views.forget)
        await asyncio.to_thread(self._purge, identifier)
        cases.forget()

    def _purge(self, identifier: str) -> None:
        self.store.discard(identifier)
        self.jobs.remove(identifier)

    async def remove_expired(self) -> None:
        """Delete the jobs that ended longer ago than results are kept."""
        if self.settings.keep is None:
            return
        for identifier in self.jobs.expired(time.time() - self.settings.keep):
            with suppress(Exception):
                await self.delete(identifier)
                self.audit.write("-", "job expired", job=identifier)
