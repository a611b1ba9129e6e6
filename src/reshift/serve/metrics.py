"""Counters and gauges in Prometheus' text format, at ``/metrics``."""

import threading
from bisect import bisect_left
from collections import Counter
from pathlib import Path

BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)  # seconds from upload to result


class Metrics:
    """What the server counts while it runs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.jobs: Counter[str] = Counter()
        self.seconds = [0] * (len(BUCKETS) + 1)
        self.seconds_sum, self.cases, self.upload_bytes, self.worker_deaths, self.refused = 0.0, 0, 0, 0, 0

    def request(self, method: str, status: int) -> None:
        """A request was answered."""
        with self.lock:
            self.requests[method, status] += 1

    def ended(self, state: str, cases: int, seconds: float) -> None:
        """A job ended, so long after it was accepted."""
        with self.lock:
            self.jobs[state] += 1
            self.cases += cases
            self.seconds[bisect_left(BUCKETS, seconds)] += 1
            self.seconds_sum += seconds

    def text(self, gauges: dict[str, float]) -> str:
        """Everything, as Prometheus reads it."""
        lines: list[str] = []

        def add(name: str, kind: str, about: str, rows: list[tuple[str, float]]) -> None:
            lines.extend((f"# HELP reshift_{name} {about}", f"# TYPE reshift_{name} {kind}"))
            lines.extend(f"reshift_{name}{labels} {value:g}" for labels, value in rows)

        with self.lock:
            answered = [(f'{{method="{method}",status="{status}"}}', n) for (method, status), n in sorted(self.requests.items())]
            add("requests_total", "counter", "Requests answered.", [(row, float(n)) for row, n in answered])
            add("jobs_total", "counter", "Jobs ended.", [(f'{{state="{s}"}}', float(n)) for s, n in sorted(self.jobs.items())])
            add("cases_total", "counter", "Cases scored.", [("", self.cases)])
            add("upload_bytes_total", "counter", "Bytes of accepted uploads.", [("", self.upload_bytes)])
            add("worker_deaths_total", "counter", "Worker processes that were killed.", [("", self.worker_deaths)])
            add("refused_total", "counter", "Requests refused because the server was busy.", [("", self.refused)])
            self._histogram(lines)
        for name, value in gauges.items():
            add(name, "gauge", name.replace("_", " ").capitalize() + ".", [("", value)])
        return "\n".join(lines) + "\n"

    def _histogram(self, lines: list[str]) -> None:
        lines += ["# HELP reshift_job_seconds From upload to result.", "# TYPE reshift_job_seconds histogram"]
        total = 0
        for bound, count in zip([*(f"{b:g}" for b in BUCKETS), "+Inf"], self.seconds, strict=True):
            total += count
            lines.append(f'reshift_job_seconds_bucket{{le="{bound}"}} {total}')
        lines += [f"reshift_job_seconds_sum {self.seconds_sum:g}", f"reshift_job_seconds_count {total}"]


def resident_bytes() -> float:
    """Memory of this process; 0 where the system does not tell."""
    status = Path("/proc/self/statm")
    return float(status.read_text().split()[1]) * 4096 if status.exists() else 0.0
