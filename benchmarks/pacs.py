"""``reshift pacs score`` from a real Orthanc on loopback: studies per minute and the share of time the model waits.

    python benchmarks/pacs.py [--studies 3] [--instances 300] [--size 512]

The floor is ``dicomweb-client`` fetching the same series into memory and doing nothing else. Studies are synthetic CT; the method
is ``brightness``, which costs almost nothing, so that what is measured is transfer, reading, export and storing. Needs Debian's
orthanc and orthanc-dicomweb.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import dicom_files
from helpers import save_many
from orthanc import Orthanc, running_orthanc
from pacs_studies import STUDY

from measure import Rows, options
from reshift.inference.model import Model, load_model
from reshift.inference.outputs import KINDS
from reshift.pacs.archive import Archive, Options, dicomweb_client
from reshift.pacs.fetch import Fetched, Inbox, fetch_series
from reshift.pacs.query import Filters, list_instances
from reshift.pacs.run import Plan, score_archive
from reshift.training.run import resolve, train_run

RUNS = (  # name, whether results are stored, and which are made
    ("fetch and score, mask and report", False, ("mask", "report")),
    ("fetch and score, all results", False, KINDS),
    ("fetch, score and push, all results", True, KINDS),
)


def main() -> None:
    parser = options(__doc__ or "")
    parser.add_argument("--studies", type=int, default=3)
    parser.add_argument("--instances", type=int, default=300)
    parser.add_argument("--size", type=int, default=512)
    given = parser.parse_args()
    rows = Rows()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = resolve("brightness", "paper", [{"calibrate": {"features": "off"}}])
        model = load_model(train_run(config, save_many(folder / "images", 12, 64, 64), folder / "run"), given.device)
        with running_orthanc(folder / "orthanc") as archive:
            for number in range(1, given.studies + 1):
                upload_study(archive, folder / "study.dcm", number, given.instances, given.size)
            measure(rows, archive, model, folder, given.studies)
    rows.print(given.device, given.out)


def upload_study(archive: Orthanc, file: Path, number: int, instances: int, size: int) -> None:
    """A body of soft tissue with noise, and a bright ball in a tenth of its slices."""
    chance = np.random.default_rng(number)
    y, x = np.mgrid[:size, :size] / size - 0.5
    body = np.where((x / 0.4) ** 2 + (y / 0.3) ** 2 < 1, 1060, 24)
    for k in range(instances):
        near = abs(k - instances / 2) < instances / 20
        pixels = np.where(near & ((x - 0.1) ** 2 + y**2 < 0.003), 2400, body) + chance.integers(0, 20, (size, size))
        identity = {"StudyInstanceUID": f"{STUDY}.{number}", "SeriesInstanceUID": f"{STUDY}.{number}.1"}
        made = dicom_files.ct(pixels, (0.0, 0.0, float(k)), **identity, StudyDate="20260115", WindowCenter=200, WindowWidth=2600)
        made.SOPInstanceUID = f"{STUDY}.{number}.1.{k + 1}"
        archive.upload([dicom_files.write(made, file)])


def measure(rows: Rows, archive: Orthanc, model: Model, folder: Path, studies: int) -> None:
    """The floor first, then our parts alone, then everything at once."""
    connection = Archive(Options(archive.dicomweb, timeout=120.0), Event())
    client = dicomweb_client(connection)
    floor = seconds(lambda: [client.retrieve_series(f"{STUDY}.{n}", f"{STUDY}.{n}.1") for n in range(1, studies + 1)])
    rows.add("pacs", "dicomweb-client, fetching alone", 60 * studies / floor, "studies/min")
    fetching = seconds(lambda: [fetch(connection, folder / f"fetched{n}", n) for n in range(1, studies + 1)])
    rows.add("pacs", "our fetching alone, to files", 60 * studies / fetching, "studies/min")
    for what, push, kinds in RUNS:
        plan = Plan(connection.options, folder / what, Filters(), push=push, overlays="none", kinds=kinds)
        done = score_archive(model, plan)
        rows.add("pacs", what, 60 * studies / done.seconds, "studies/min")
        rows.add("pacs", f"{what}: share of time the model waits", done.waited / done.seconds, "")


def fetch(connection: Archive, target: Path, number: int) -> Fetched:
    target.mkdir()
    study, series = f"{STUDY}.{number}", f"{STUDY}.{number}.1"
    return fetch_series(connection, study, series, list_instances(connection, study, series), Inbox(target, 2**40))


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
