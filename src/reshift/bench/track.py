"""Send the metrics of finished cells to TensorBoard (extra: log) or MLflow (extra: mlflow)."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from reshift.bench.cells import slug
from reshift.errors import UserError, reason
from reshift.evaluation.metrics.table import METRICS

Cell = Mapping[str, Any]
Tracker = Literal["tensorboard", "mlflow"]
TAG = "reshift.key"  # of an MLflow run: the key of its cell, so that no cell is added twice


def scalars(cell: Cell) -> dict[str, float]:
    """Every metric that a cell has, by names such as ``image/auc``; empty for a failed cell."""
    return {f"{m.level}/{m.name}": value for m in METRICS.values() if (value := m.read_cell(cell)) is not None}


@contextmanager
def tracking(kinds: Sequence[Tracker], out: Path) -> Iterator[Callable[[Cell], None]]:
    """``with tracking(["tensorboard"], out) as track: track(cell)`` for each finished cell; a missing extra is one line."""
    makers: dict[str, Callable[[Path], Any]] = {"tensorboard": _tensorboard, "mlflow": _mlflow}
    with ExitStack() as stack:
        writers = [stack.enter_context(makers[kind](out)) for kind in kinds]

        def track(cell: Cell) -> None:
            for write in list(writers) if scalars(cell) else ():
                try:
                    write(cell)
                except Exception as err:  # the benchmark goes on if a server stops answering
                    print(f"warning: tracking stopped: {reason(err).splitlines()[0]}", file=sys.stderr, flush=True)
                    writers.remove(write)

        yield track


@contextmanager
def _tensorboard(out: Path) -> Iterator[Callable[[Cell], None]]:
    """Write one curve over seeds per row and data set, in ``out/tensorboard``."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("tracking by TensorBoard needs it installed: pip install 'reshift[log]'") from None
    writer: Any = SummaryWriter

    def write(cell: Cell) -> None:
        with writer(out / "tensorboard" / str(cell["dataset"]) / slug(str(cell["row"]))) as board:
            for name, value in scalars(cell).items():
                board.add_scalar(name, value, int(cell["seed"]))

    yield write


@contextmanager
def _mlflow(out: Path) -> Iterator[Callable[[Cell], None]]:
    """Write one MLflow run per cell and one experiment per suite, to MLFLOW_TRACKING_URI or ``out/mlflow.db``."""
    try:
        found: Any = import_module("mlflow.tracking")
    except ImportError:
        raise UserError("tracking by MLflow needs it installed: pip install 'reshift[mlflow]'") from None
    where = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(out / 'mlflow.db').resolve()}"
    try:
        client: Any = found.MlflowClient(tracking_uri=where)
    except Exception as err:
        raise UserError(
            f"MLflow cannot use {where}: {reason(err).splitlines()[0]}; set MLFLOW_TRACKING_URI to another place"
        ) from None

    def write(cell: Cell) -> None:
        name = f"reshift {cell['suite']}"
        known = client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else client.create_experiment(name)
        if client.search_runs([experiment], f"tags.`{TAG}` = '{cell['key']}'", max_results=1):
            return
        title = f"{cell['dataset']} {cell['row']} {cell['seed']}"
        run = client.create_run(experiment, tags={TAG: str(cell["key"])}, run_name=title).info.run_id
        for key, text in _parameters(cell).items():
            client.log_param(run, key, text)
        for key, value in scalars(cell).items():
            client.log_metric(run, key, value)
        client.set_terminated(run)

    yield write


def _parameters(cell: Cell) -> dict[str, str]:
    """What was run, as text."""
    found = {name: str(cell[name]) for name in ("row", "method", "group", "dataset", "trained_on", "seed") if name in cell}
    setting = cell.get("setting")
    return found | ({str(setting["name"]): str(setting["value"])} if setting else {})
