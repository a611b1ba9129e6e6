"""Which job runs where: starts a worker per device, hands out jobs, and takes them back when a worker dies.

Everything here runs in threads: one per worker listens to it. The database says what is to be done; this says what is being done.
"""

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from reshift.errors import UserError
from reshift.serve.audit import Audit
from reshift.serve.devices import Device, Running, send, slots_of
from reshift.serve.jobs import ENDED, Job, Jobs
from reshift.serve.metrics import Metrics
from reshift.serve.store import Store
from reshift.serve.waiters import Waiters
from reshift.system.workers import spawning

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

log = logging.getLogger("reshift.serve")

MAX_ATTEMPTS = 2  # by workers that are killed
RESTART_SECONDS = (0.0, 1.0, 5.0, 30.0)  # before a worker that dies again and again is started anew
RETRY_SECONDS = 5.0  # before a job runs again whose end could not be stored: the disk is full, or fails
STOPPED = "its worker process was killed twice, perhaps because memory ran out; send smaller images, or fewer at a time"


Message = Callable[[Job], dict[str, Any]]  # what a worker is told of a job
Public = Callable[[str], str]  # a line of a worker without the server's own paths


class Dispatcher:
    """Runs what is queued."""

    def __init__(
        self, jobs: Jobs, store: Store, device: str, message: Message, public: Public, audit: Audit, metrics: Metrics
    ) -> None:
        self.jobs, self.store, self.message, self.public, self.audit, self.metrics = jobs, store, message, public, audit, metrics
        self.lock, self.waiters = threading.RLock(), Waiters()
        self.devices = [Device(name) for name in device.split(",")]
        self.waiting: list[Job] = jobs.queued()
        self.closing = False
        self.answers: dict[str, tuple[threading.Event, dict[str, Any]]] = {}
        self.rate = 1.0  # seconds per job, lately
        self.last_end = time.monotonic()

    def start(self) -> None:
        """Start a worker per device."""
        for device in self.devices:
            self._start(device)

    def _start(self, device: Device) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        home = str(self.store.root / "workers" / device.name.replace(":", "-"))
        from reshift.serve.worker import serve

        with spawning():
            process = context.Process(target=serve, args=(theirs, device.name, home), daemon=True, name=f"reshift {device.name}")
            process.start()
        theirs.close()
        device.process, device.pipe, device.ready = process, ours, False
        threading.Thread(target=self._listen, args=(device, ours), daemon=True, name=f"listen {device.name}").start()

    def close(self) -> None:
        """End the workers; their jobs are continued by the next server."""
        with self.lock:
            self.closing = True
            for device in self.devices:
                if device.pipe is not None:
                    device.pipe.close()
                if device.process is not None:
                    device.process.kill()
        for device in self.devices:
            if device.process is not None:
                device.process.join()

    # ---- what the API asks for ----

    def add(self, job: Job) -> None:
        """Queue a job that was just accepted."""
        with self.lock:
            if job.id not in {waiting.id for waiting in self.waiting}:
                self.waiting.append(job)
        self._hand_out()

    def running(self, identifier: str) -> Running | None:
        """The job, if it runs."""
        with self.lock:
            return next((found for device in self.devices if (found := device.running.get(identifier))), None)

    def all_running(self) -> list[str]:
        """Identifiers of the jobs that run."""
        with self.lock:
            return [identifier for device in self.devices for identifier in device.running]

    def is_ready(self) -> bool:
        """Whether a worker can take jobs."""
        return any(device.ready for device in self.devices)

    def wait_seconds(self) -> float:
        """After how long it makes sense to ask again."""
        return min(60.0, self.rate * (1 + len(self.waiting)) / 2)

    def cancel(self, identifier: str) -> None:
        """Stop a job that waits or runs; returns when no worker writes to its folder any more, or after a minute."""
        with self.lock:
            self.waiting = [job for job in self.waiting if job.id != identifier]
            for device in self.devices:
                if (found := device.running.get(identifier)) and device.pipe is not None:
                    found.cancelled = True
                    send(device.pipe, {"kind": "cancel", "id": identifier})
        if self.jobs.finish(identifier, "cancelled"):
            self.waiters.wake(identifier)
        self.waiters.wait_in_thread(lambda: self.running(identifier) is None, 60.0)

    async def ended_within(self, identifier: str, seconds: float) -> None:
        """Wait until a job has ended, or so long."""
        await self.waiters.wait(identifier, seconds, lambda: (job := self.jobs.get(identifier)) is None or job.state in ENDED)

    def ask(self, identifier: str, message: dict[str, Any], timeout: float = 60.0) -> dict[str, Any]:
        """Ask a worker for something other than a job, and wait for its answer."""
        event, answer = threading.Event(), dict[str, Any]()
        with self.lock:
            device = next((device for device in self.devices if device.ready and device.pipe is not None), None)
            if device is None or device.pipe is None:
                return {"state": "failed", "error": "no worker is ready; try again in a moment"}
            self.answers[identifier] = event, answer
            send(device.pipe, {**message, "id": identifier})
        event.wait(timeout)
        self.answers.pop(identifier, None)
        return answer or {"state": "failed", "error": "the worker did not answer; try again in a moment"}

    # ---- what workers say ----

    def _listen(self, device: Device, pipe: "Connection[Any, Any]") -> None:
        while True:
            try:
                message = json.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                break
            try:
                self._hear(device, message)
            except Exception:
                log.exception("a message of a worker could not be handled")
        self._bury(device)

    def _hear(self, device: Device, message: dict[str, Any]) -> None:
        if message["kind"] == "ready":
            self._welcome(device, message)
        elif message["kind"] == "progress":
            if running := device.running.get(message["id"]):
                running.done = message["done"]
        elif waiting := self.answers.get(message["id"]):
            waiting[1].update(message)
            waiting[0].set()
        else:
            self._end(device, message)
        self._hand_out()

    def _welcome(self, device: Device, message: dict[str, Any]) -> None:
        """A worker is ready; the first of several GPUs tells that there are more."""
        with self.lock:
            auto, device.name, device.ready = device.name == "auto", message["device"], True
            more = [Device(f"cuda:{i}") for i in range(1, message["devices"])] if auto else []
            known = {other.name for other in self.devices}
            more = [other for other in more if other.name not in known]
            self.devices += more
        for other in more:
            self._start(other)

    def _end(self, device: Device, message: dict[str, Any]) -> None:
        identifier, state = message["id"], message["state"]
        with self.lock:
            running = device.running.get(identifier)
            device.deaths = 0
        if running is None:
            return
        values = {name: message[name] for name in ("failures", "cases") if name in message}
        error, notes = message.get("error"), [self.public(note) for note in message.get("notes", ())]
        try:
            ended = self.jobs.finish(identifier, state, error and self.public(error), notes=notes, **values)
        except sqlite3.Error as err:
            self._release(device, identifier)
            self._run_later(running.job, err)
            return
        if ended:
            seconds = time.time() - running.job.created
            self.metrics.ended(state, message.get("cases", 0), seconds)
            self.audit.write(running.job.owner, f"job {state}", job=identifier, sha256=running.job.sha256)
        self._release(device, identifier)

    def _release(self, device: Device, identifier: str) -> None:
        with self.lock:
            device.running.pop(identifier, None)
            now = time.monotonic()
            self.rate, self.last_end = 0.9 * self.rate + 0.1 * min(60.0, now - self.last_end), now
        self.waiters.wake(identifier)

    def _run_later(self, job: Job, why: sqlite3.Error) -> None:
        """Run a job again after a while; what it has scored is on the disk, so it takes no time."""
        log.error("job %s could not be ended (%s); tried again in %g s", job.id, why, RETRY_SECONDS)
        timer = threading.Timer(RETRY_SECONDS, self._run_again, [job])
        timer.daemon = True
        timer.start()

    def _run_again(self, job: Job) -> None:
        try:
            found = None if self.closing else self.jobs.get(job.id)
        except sqlite3.Error as err:
            self._run_later(job, err)
            return
        if found is not None and found.state not in ENDED:
            self.add(found)

    def _bury(self, device: Device) -> None:
        """A worker has ended. Its jobs are tried once more, each alone; then they fail."""
        with self.lock:
            if self.closing:
                return
            jobs, device.running, device.ready = [found.job for found in device.running.values()], {}, False
            device.process.join()
            device.deaths += 1
            self.metrics.worker_deaths += 1
            log.warning("the worker of %s ended (exit code %s); it is started again", device.name, device.process.exitcode)
            for job in jobs:
                try:
                    self._take_back(job)
                except sqlite3.Error as err:
                    self._run_later(job, err)
        for job in jobs:
            self.waiters.wake(job.id)
        time.sleep(RESTART_SECONDS[min(device.deaths - 1, len(RESTART_SECONDS) - 1)])
        with self.lock:
            if not self.closing:
                self._start(device)

    def _take_back(self, job: Job) -> None:
        """The worker of a job was killed."""
        if self.jobs.count_attempt(job.id) < MAX_ATTEMPTS:
            self.waiting.insert(0, job._replace(attempts=job.attempts + 1))
        elif self.jobs.finish(job.id, "failed", STOPPED):
            self.metrics.ended("failed", 0, time.time() - job.created)
            self.audit.write(job.owner, "job failed", job=job.id, sha256=job.sha256)

    # ---- handing out ----

    def _hand_out(self) -> None:
        """Give every free worker what it can take."""
        with self.lock:
            for device in self.devices:
                while device.ready and not self.closing and (job := self._next(device)) is not None:
                    self.waiting.remove(job)
                    try:
                        message = {**self.message(job), "id": job.id}
                    except UserError as err:  # what it should score is no longer there
                        self.jobs.finish(job.id, "failed", str(err))
                        self.waiters.wake(job.id)
                        continue
                    device.running[job.id] = Running(job, slots_of(job, device))
                    assert device.pipe is not None
                    send(device.pipe, message)

    def _next(self, device: Device) -> Job | None:
        """The oldest job of whoever has the fewest running. One whose worker was killed before runs alone."""
        if any(found.job.attempts for found in device.running.values()):
            return None
        busy = [found.job.owner for other in self.devices for found in other.running.values()]
        for job in sorted(self.waiting, key=lambda job: (busy.count(job.owner), job.number)):
            if job.attempts:
                if not device.running:
                    return job
            elif slots_of(job, device) <= device.slots:
                return job
            else:
                return None  # it waits for its turn, and nobody overtakes it
        return None
