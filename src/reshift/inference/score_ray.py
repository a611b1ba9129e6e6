"""``reshift score --engine ray``: workers on any number of machines write the maps; this process writes the records.

Ray Data hands chunks of file names to a pool of actors, each with the model loaded once. A chunk begins and ends where a batch
of a local run does, so the same images meet in the same batch. What returns is a few hundred bytes of JSON per image.
"""

import json
import logging
import os
import traceback
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reshift import __version__
from reshift.data.read import Input
from reshift.errors import UserError
from reshift.inference.inputs import ScoreCase
from reshift.inference.model import GPU_BATCH, load_model
from reshift.inference.outputs import DEFAULTS, Outputs
from reshift.inference.records import failed_record
from reshift.inference.score import Run, Scored, score_cases
from reshift.inference.stream import grouped
from reshift.methods import VARIABLE as METHODS
from reshift.system.ray_cluster import Share, SharedFolder, check, cluster, count_attempt, node_resources, share, shared_folder

if TYPE_CHECKING:
    from reshift.data.dicom.series import Series

BATCHES = 8  # per chunk: short enough to lose little with a worker, long enough for Ray's milliseconds not to matter
CHUNKS = 10_000  # at most, of all; each costs this process and Ray's a little memory
TRIES = 3  # of a chunk whose worker dies; Ray itself would try for ever


class Setup(NamedTuple):
    """What every worker is told."""

    bundle: Path
    shared: SharedFolder
    dicom: bool
    device: str
    relative: bool  # some names are relative to the driver's current folder
    tries: int
    methods: str  # that the user trusts, see reshift.methods
    overlays: str = "all"
    outputs: Outputs = DEFAULTS


class Engine:
    """Scores on Ray; ``engine(run, cases)`` stands in for ``score.score_cases``."""

    def __init__(self, bundle: Path, workers: int | None, device: str) -> None:
        check(device)
        self.bundle, self.workers, self.device = bundle, workers, device

    def __call__(self, run: Run, cases: Sequence[ScoreCase]) -> Scored:
        """Yield the records of every case as they arrive."""
        if not cases:
            return
        relative = not all(case.path.is_absolute() for case in cases)
        with shared_folder(run.out) as shared, cluster(self.workers) as ray:
            trusted = os.environ.get(METHODS, "")
            bundle = self.bundle.resolve()
            setup = Setup(bundle, shared, run.dicom, self.device, relative, TRIES, trusted, run.overlays, run.outputs)
            yield from _score(ray, setup, share(node_resources(ray), self.workers, self.device), run, cases)


def _score(ray: Any, setup: Setup, each: Share, run: Run, cases: Sequence[ScoreCase]) -> Scored:
    """Everything in chunks; then, one by one, what was in a chunk whose worker died again and again."""
    done = bytearray(len(cases))
    for alone in (False, True):
        left = [i for i in range(len(cases)) if not done[i]]
        if alone and len(left) == len(cases) > 1:
            raise UserError("every Ray worker died before it had scored anything; is there memory for the model on each node?")
        parts = _chunks(left, cases, 1 if alone else chunk_size(len(cases), each))
        chunks = [[(i, cases[i]) for i in part] for part in parts]
        for answer in _answers(ray, setup, each, chunks, alone=alone):
            done[answer["index"]] = True
            run.notes.extend(answer["notes"])
            yield cases[answer["index"]], answer["records"]
    for i in (i for i in range(len(cases)) if not done[i]):
        died = f"its worker died {TRIES} times; out of memory, or a file that a library crashes on?"
        yield cases[i], [failed_record(cases[i], f"{cases[i].path}: {died}")]


def chunk_size(cases: int, each: Share) -> int:
    """Images per chunk, in whole batches: few enough that all workers have work until the end."""
    batch = GPU_BATCH if each.gpus else 1
    fair = -(-cases // (4 * each.workers * batch))
    return batch * max(min(BATCHES, fair), -(-cases // (CHUNKS * batch)))


def _chunks(chosen: Sequence[int], cases: Sequence[ScoreCase], size: int) -> Iterator[list[int]]:
    """A volume is many images, and mostly a chunk by itself."""
    for volumes, alike in groupby(chosen, key=lambda i: cases[i].volume):
        yield from grouped(alike, max(1, -(-len(cases) // CHUNKS)) if volumes else size)


def _answers(
    ray: Any, setup: Setup, each: Share, chunks: Sequence[Sequence[tuple[int, ScoreCase]]], *, alone: bool
) -> Iterator[dict[str, Any]]:
    """Run one pipeline. A chunk that killed its worker too often gives no answer; a mistake stops everything."""
    if not chunks:
        return
    from ray import data

    _silence_ray_data()
    data.DataContext.get_current().enable_progress_bars = False
    pool = data.ActorPoolStrategy(size=min(each.workers, len(chunks)), max_tasks_in_flight_per_actor=1 if alone else 2)
    scored = data.from_arrow([_table(chunk) for chunk in chunks]).map_batches(
        Worker, fn_constructor_args=(setup, alone), batch_size=None, batch_format="pyarrow", compute=pool,
        num_cpus=each.cpus, num_gpus=each.gpus,
    )  # fmt: skip
    try:
        for batch in scored.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            for text in batch.column("answer").to_pylist():
                answer = json.loads(text)
                if "mistake" in answer:
                    raise UserError(answer["mistake"])
                if "crash" in answer:
                    raise RuntimeError(f"in a Ray worker:\n{answer['crash']}")
                if "index" in answer:
                    yield answer
    except ray.exceptions.RayError as err:
        lines = [line for line in str(err).splitlines() if line.strip()]
        raise UserError(f"Ray could not go on ({lines[-1].strip()}); is reshift {__version__} installed on every node?") from err


def _table(chunk: Sequence[tuple[int, ScoreCase]]) -> Any:
    import pyarrow

    return pyarrow.table({"case": [json.dumps([i, *packed(case)]) for i, case in chunk]})


def packed(case: ScoreCase) -> list[Any]:
    """A case as JSON; a name that is not Unicode is escaped."""
    found = case.input.series
    series = found and [found.uid, found.modality, [str(file) for file in found.files], found.stacked, str(found.folder)]
    return [str(case.path), case.name, case.source, series]


def unpacked(path: str, name: str, source: str, series: list[Any] | None) -> ScoreCase:
    """Undo ``packed``."""
    return ScoreCase(Input(Path(path), _series(*series) if series else None), name, source)


def _series(uid: str, modality: str, files: list[str], stacked: bool, folder: str) -> "Series":
    from reshift.data.dicom.series import Series

    return Series(uid, modality, tuple(Path(file) for file in files), stacked, Path(folder))


def _silence_ray_data() -> None:
    """Keep the lines of Ray Data off the console; its log files stay."""
    for handler in logging.getLogger("ray.data").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setLevel(logging.CRITICAL)


class Worker:
    """Loads the model once, then scores chunk after chunk. What a user can mend is handed back as an answer."""

    def __init__(self, setup: Setup, alone: bool) -> None:
        self.run: Run | None = None
        self.mistake = ""
        self.tries = setup.tries
        self.mark = str(setup.shared.notes / ("alone" if alone else "chunk"))
        os.environ[METHODS] = setup.methods
        try:
            setup.shared.enter(relative=setup.relative)
            model = load_model(setup.bundle, setup.device)
            self.run = Run(model, setup.shared.out, setup.dicom, [], setup.overlays, setup.outputs)
        except UserError as err:
            self.mistake = str(err)

    def __call__(self, table: Any) -> Any:
        """Cases in, one answer per case out."""
        import pyarrow

        return pyarrow.table({"answer": [json.dumps(answer) for answer in self._answers(table.column("case").to_pylist())]})

    def _answers(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        if self.run is None:
            return [{"mistake": self.mistake}]
        rows = [json.loads(text) for text in texts]
        mark, answers = Path(f"{self.mark}-{rows[0][0]}"), list[dict[str, Any]]()
        try:
            if count_attempt(mark) > self.tries:
                return [{"given up": rows[0][0]}]
            for answer in _scored(self.run, rows):
                answers.append(answer)  # one by one: what comes before a mistake is kept
            mark.unlink(missing_ok=True)
        except UserError as err:
            answers.append({"mistake": str(err)})
        except Exception:  # handed over in words: Ray would wrap it
            answers.append({"crash": traceback.format_exc()})
        return answers


def _scored(run: Run, rows: Sequence[list[Any]]) -> Iterator[dict[str, Any]]:
    cases = [unpacked(*row) for _, *row in rows]
    index = {case.name: row[0] for case, row in zip(cases, rows, strict=True)}  # no two cases share a name
    for case, records in score_cases(run, cases):
        yield {"index": index[case.name], "records": records, "notes": list(run.notes)}
        run.notes.clear()
