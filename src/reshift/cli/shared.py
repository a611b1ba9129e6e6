"""Options, exit codes and functions that several commands share."""

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from reshift.errors import printable

FAILED_CASES, INTERRUPTED = 3, 130  # exit codes; a user's mistake is 2

Data = Annotated[
    Path, typer.Option("--data", help="manifest.csv, folder of normal images, folder in a known layout, or a zip of one")
]
Out = Annotated[Path, typer.Option("--out", help="output folder; created if needed")]
Device = Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:1, …")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="seed of all random numbers")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
DicomKinds = Annotated[
    str, typer.Option("--dicom-kinds", metavar="KINDS", help="DICOM results to make, of mask,report,map,overlay; default: all")
]
BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="bundle folder, e.g. RUN/bundle")]

cleanup = ExitStack()  # main closes it after the command


def unpack(path: Path) -> Path:
    """Return the folder of a zip file, unpacked until the command ends; any other path is returned as it is."""
    from reshift.data.archive import unpacked

    return cleanup.enter_context(unpacked(path))


def shown(text: str) -> str:
    """``text`` with the files of a zip file named after it, not by where it was unpacked."""
    if "reshift.data.archive" not in sys.modules:  # then nothing was unpacked
        return text
    from reshift.data.archive import archive_names

    return archive_names(text)


def warn(lines: Iterable[str]) -> None:
    """Print warnings to stderr."""
    for line in lines:
        typer.echo(f"warning: {printable(shown(line))}", err=True)


def print_metrics(metrics: dict[str, Any]) -> None:
    """Print the metrics, one line for images and one for pixels."""
    from reshift.evaluation.metrics.table import metric_lines

    for line in metric_lines(metrics):
        typer.echo(line)
