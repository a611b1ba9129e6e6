"""A client for programs and notebooks: ``Client(url).score(files)``; needs httpx and NumPy only."""

import io
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np
from numpy.typing import NDArray

from reshift.errors import UserError

ENDED = ("done", "failed", "cancelled")
MAX_WAIT = 30.0  # seconds of one request for a job's end


class Client:
    """Talks to ``reshift serve``. What the server refuses becomes a ``UserError`` with its line."""

    def __init__(self, url: str = "http://127.0.0.1:8000", token: str | None = None, timeout: float = 120.0) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None) -> None:
        self.http.close()

    def models(self) -> list[dict[str, Any]]:
        """The models with their thresholds."""
        found: list[dict[str, Any]] = self._get("/models")["items"]
        return found

    def submit(self, files: Sequence[str | Path], model: str | None = None, *, dicom: bool = False) -> str:
        """Upload files and return the job's id. A busy server is asked again; the job is accepted once."""
        fields = {name: value for name, value in (("model", model), ("dicom", "true" if dicom else None)) if value}
        key = uuid.uuid4().hex
        while True:
            with ExitStack() as opened:
                parts = [("files", (Path(name).name, opened.enter_context(Path(name).open("rb")))) for name in files]
                answer = self.http.post("/api/v1/jobs", data=fields, files=parts, headers={"Idempotency-Key": key})
            if answer.status_code != 429:
                identifier: str = self._json(answer)["id"]
                return identifier
            time.sleep(float(answer.headers.get("Retry-After", "1")))

    def wait(self, job: str, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the end of a job; one that failed raises its reason."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = MAX_WAIT if deadline is None else max(0.0, min(MAX_WAIT, deadline - time.monotonic()))
            found = self._get(f"/jobs/{job}", wait=left)
            if found["state"] == "failed":
                raise UserError(f"job {job} failed: {found['error']}")
            if found["state"] in ENDED or (deadline is not None and time.monotonic() >= deadline):
                return found

    def cases(self, job: str, **filters: Any) -> Iterator[dict[str, Any]]:
        """Every case of a job: score, p-value, flag; ``flag=True, sort="score"`` filter and sort."""
        offset: int | None = 0
        while offset is not None:
            page = self._get(f"/jobs/{job}/cases", offset=offset, limit=500, **filters)
            yield from page["items"]
            offset = page["next"]

    def heatmap(self, case: dict[str, Any]) -> NDArray[np.float32]:
        """The heat-map on the image's own pixels, ``(H, W)``, or ``(S, H, W)`` of a volume; NaN where there is none."""
        found: NDArray[np.float32] = np.load(io.BytesIO(self.download(case, "npy")), allow_pickle=False)
        return found

    def download(self, case: dict[str, Any], kind: str) -> bytes:
        """The heat-map as a file: npy, nifti, png or dicom."""
        return self._checked(self.http.get(f"{case['url']}/map", params={"format": kind})).content

    def review(self, case: dict[str, Any], verdict: str, note: str = "", reviewer: str = "") -> dict[str, Any]:
        """Accept or reject a case."""
        body = {"verdict": verdict, "note": note, "reviewer": reviewer}
        return self._json(self.http.put(f"{case['url']}/review", json=body))

    def delete(self, job: str) -> None:
        """Remove a job with its uploads and results."""
        self._checked(self.http.delete(f"/api/v1/jobs/{job}"))

    def score(self, files: Sequence[str | Path], model: str | None = None) -> list[dict[str, Any]]:
        """Upload, wait, and return the cases."""
        job = self.submit(files, model)
        self.wait(job)
        return list(self.cases(job))

    def _get(self, path: str, **query: Any) -> dict[str, Any]:
        return self._json(self.http.get(f"/api/v1{path}", params=query))

    def _json(self, answer: httpx.Response) -> dict[str, Any]:
        found: dict[str, Any] = self._checked(answer).json()
        return found

    @staticmethod
    def _checked(answer: httpx.Response) -> httpx.Response:
        if answer.is_error:
            problem = answer.headers.get("content-type", "").startswith("application/problem+json")
            raise UserError(answer.json()["detail"] if problem else f"the server answered {answer.status_code}")
        return answer
