"""The worker process of one device: takes jobs from a pipe, scores them in threads, and reports what becomes of them.

Messages are lines of JSON. To the worker: ``score``, ``cancel``, ``restore``, ``forget``. From it: ``ready``, ``progress``,
``ended``, ``restored``. The process ends with its pipe, so also when the server is killed.
"""

import json
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshift.errors import UserError
from reshift.system.lock import locked

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from reshift.inference.inputs import ScoreCase
    from reshift.inference.score import Run, Scored
    from reshift.serve.batching import SharedModel

MAX_JOBS = 128  # threads; the server sends as many jobs as it wants to run at the same time
MAX_MODELS = 3  # kept loaded


def serve(pipe: "Connection[Any, Any]", device: str, home: str) -> None:
    """Answer messages until the pipe ends. ``home`` is locked: a worker of a killed server may not have ended yet."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # Ctrl-C is for the server, whose end closes the pipe
        signal.signal(number, signal.SIG_IGN)
    Path(home).mkdir(parents=True, exist_ok=True)
    with locked(Path(home), wait=True), suppress(EOFError, OSError):
        worker = Worker(pipe, device)
        while True:
            worker.take(json.loads(pipe.recv_bytes()))
    os._exit(0)  # threads may be in the middle of a job; what they leave is taken up later


class Worker:
    """The state of the process: loaded models, and jobs at hand."""

    def __init__(self, pipe: "Connection[Any, Any]", device: str) -> None:
        from reshift.system import progress

        progress.silence()
        import torch

        from reshift.serve.batching import DeviceThread
        from reshift.system.device import pick_device

        self.pipe, self.sending = pipe, threading.Lock()
        self.device, self.thread = str(pick_device(device)), DeviceThread()
        self.models: dict[tuple[str, int, int], SharedModel] = {}  # the most recently used last
        self.loading, self.local = threading.Lock(), threading.local()
        self.cancelled = set[str]()
        self.pool = ThreadPoolExecutor(MAX_JOBS)
        self.send("ready", device=self.device, devices=torch.cuda.device_count())

    def send(self, kind: str, **values: Any) -> None:
        """Tell the server; if it is gone, so is the reason to work."""
        with self.sending:
            try:
                self.pipe.send_bytes(json.dumps({"kind": kind, **values}).encode())
            except OSError:
                os._exit(0)

    def take(self, message: dict[str, Any]) -> None:
        """One message from the server."""
        if message["kind"] == "cancel":
            self.cancelled.add(message["id"])
        else:
            self.pool.submit(self._work, message)

    def _work(self, message: dict[str, Any]) -> None:
        """Do a job, and report its end, whatever that is."""
        from reshift.serve.batching import Cancelled

        self.local.job = message["id"]
        answer: dict[str, Any] = {"id": message["id"]}
        try:
            answer |= getattr(self, f"_{message['kind']}")(message)
        except Cancelled:
            answer["state"] = "cancelled"
        except UserError as err:
            answer |= {"state": "failed", "error": str(err)}
        except Exception as err:
            traceback.print_exc()
            answer |= {
                "state": "failed",
                "error": f"the worker made a mistake ({type(err).__name__}); the server's log says more",
            }
        self.cancelled.discard(message["id"])
        self.send("ended", **answer)

    def _check(self) -> None:
        from reshift.serve.batching import Cancelled

        if self.local.job in self.cancelled:
            raise Cancelled

    def model(self, path: str) -> "SharedModel":
        """Load a bundle, or take it from the last few; a bundle that was calibrated anew is loaded again."""
        from reshift.inference.bundle import load_bundle
        from reshift.serve.batching import SharedModel

        files = [Path(path) / name for name in ("config.json", "calibration.json", "model.safetensors")]
        stats = [file.stat() for file in files if file.is_file()]
        key = (path, max((s.st_mtime_ns for s in stats), default=0), sum(s.st_size for s in stats))
        with self.loading:
            known = self.models.pop(key, None)
            self.models[key] = found = known or SharedModel(load_bundle(Path(path)), self.device, self.thread, self._check)
            while len(self.models) > MAX_MODELS:
                del self.models[next(iter(self.models))]
        return found

    def _score(self, message: dict[str, Any]) -> dict[str, Any]:
        from reshift.inference.score import score, score_cases

        self._check()
        model, identifier = self.model(message["model"]), message["id"]

        def engine(run: "Run", cases: "Sequence[ScoreCase]") -> "Scored":
            before = message["cases"] - len(cases)
            self.send("progress", id=identifier, done=before)
            for done, found in enumerate(self._checked(score_cases(run, cases)), start=before + 1):
                yield found
                self.send("progress", id=identifier, done=done)

        inputs, out = [Path(path) for path in message["inputs"]], Path(message["out"])
        summary = score(model, inputs, out, dicom=message["dicom"], engine=engine)
        notes = [*model.calibration_notes, *model.warnings(), *summary.notes, *([summary.warning] if summary.warning else [])]
        return {"state": "done", "failures": summary.failures, "cases": summary.cases, "notes": notes}

    def _evaluate(self, message: dict[str, Any]) -> dict[str, Any]:
        from reshift.data.manifest import load_cases
        from reshift.reports.report import evaluate_with_report
        from reshift.system.lock import output_folder

        data, out = Path(message["inputs"][0]), Path(message["out"])
        tests = [case for case in load_cases(data) if case.split == "test"]
        if not tests:
            raise UserError(f"{data.name}: has no test images; evaluating needs a manifest with labelled rows in split 'test'")
        with output_folder(out):
            metrics, errors = evaluate_with_report(self.model(message["model"]), tests, out, data.name, None)
        return {"state": "done", "failures": len(errors), "cases": len(tests), "notes": [*metrics["warnings"], *errors]}

    def _restore(self, message: dict[str, Any]) -> dict[str, Any]:
        """A prepared image as it would look without disease, for a method that restores."""
        import base64

        import numpy as np
        import torch

        model = self.model(message["model"])
        if not model.detector.restores:
            raise UserError("this model's method restores no images")
        pixels = np.frombuffer(base64.b64decode(message["pixels"]), np.float32).reshape(message["shape"])
        x = torch.from_numpy(pixels.copy())[None].to(model.device)
        found = model.restored(x)[0].float().cpu().numpy()
        return {"state": "done", "pixels": base64.b64encode(found.tobytes()).decode(), "shape": list(found.shape)}

    def _checked(self, scored: "Scored") -> "Iterator[Any]":
        for found in scored:
            yield found
            self._check()
