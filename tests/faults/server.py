"""Run ``reshift`` again and again, in forks of one process that has imported everything: a run takes a tenth of a second.

Started with the shim preloaded. A line of JSON comes in for every run: arguments, fault, at which operation, below which folder;
a line goes out with the exit code, what was printed, and how many operations there were.
"""

import ctypes
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from typing import Any

from serving import Jobs, drive, fork_processes

HANGS = 300  # seconds after which a run is ended, which no round allows
KINDS = ("none", "kill", "full", "eio", "fsync", "read-only", "eio-read", "clock")


def serve() -> None:
    """Answer until stdin ends."""
    import bench_suites

    import reshift.bench.compute
    import reshift.bench.local_engine
    import reshift.evaluation.evaluate
    import reshift.inference.score
    import reshift.reports.report
    import reshift.serve.app
    import reshift.serve.batching
    import reshift.serve.views
    import reshift.serve.worker
    import reshift.training.run

    assert reshift.training.run
    vars(reshift.bench.local_engine)["run_local"] = bench_suites.run_in_process
    shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
    for line in sys.stdin:
        print(json.dumps(_run(shim, **json.loads(line))), flush=True)


def _run(shim: Any, args: list[str], kind: str, at: int, below: str, uploads: list[str], known: list[str]) -> dict[str, Any]:
    jobs = Jobs([], {}, {})
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            _child(shim, args, kind, at, below, said.fileno())
        if args[0] == "serve":
            jobs = drive(child, said.fileno(), uploads, known, kind)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        text, _, counts = said.read().decode(errors="replace").partition("\0")
    code = os.waitstatus_to_exitcode(status)
    operations = [int(n) for n in counts.split()] or [shim.fault_count(), shim.fault_reads()]
    return {"code": code, "text": text, "operations": operations, "jobs": jobs}


def _child(shim: Any, args: list[str], kind: str, at: int, below: str, said: int) -> None:
    from reshift.cli.app import main

    os.dup2(said, 1)
    os.dup2(said, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["reshift", *args]
    fork_processes()
    code = 99
    signal.alarm(HANGS)
    shim.fault_set(KINDS.index(kind), ctypes.c_long(at), below.encode())
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # as Python does at its end: threads finish what they have begun
    sys.stdout.flush()
    sys.stderr.flush()
    counts = shim.fault_count(), shim.fault_reads()
    shim.fault_set(0, ctypes.c_long(0), b"")
    os.write(1, "\0{} {}".format(*counts).encode())
    os._exit(code)


if __name__ == "__main__":
    serve()
