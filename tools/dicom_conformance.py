"""Which validators and readers accept our DICOM results, for every kind of source: the table of docs/dicom.md.

    python tools/dicom_conformance.py            print the table
    python tools/dicom_conformance.py --write    put it between ``<!-- conformance -->`` and ``<!-- end -->`` in docs/dicom.md

Needs dciodvfy (dicom3tools), dsrdump (dcmtk) and segimage2itkimage (dcmqi). Exit code 1 where any of them finds an error.
"""

import re
import subprocess  # nosec B404
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from dicom_checks import dciodvfy_errors, dsrdump_errors, export_findings, program  # noqa: E402
from dicom_kinds import KINDS  # noqa: E402

OBJECTS = {"mask.dcm": "SEG", "map.dcm": "Parametric Map", "report.dcm": "SR", "overlay-0001.dcm": "Secondary Capture"}
HEADER = ["source", *OBJECTS.values(), "SR: dsrdump", "SEG: highdicom", "SEG: dcmqi"]


def highdicom_errors(path: Path) -> list[str]:
    """What highdicom says when it reads a segmentation back, pixels included."""
    import highdicom as hd

    try:
        return [] if hd.seg.segread(path).pixel_array.any() else ["empty"]
    except Exception as err:  # whatever it is, it is what the table is about
        return [repr(err)]


def dcmqi_errors(path: Path) -> list[str]:
    """What dcmqi says when it converts a segmentation."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program("segimage2itkimage") or "", "--inputDICOM", str(path), "--outputDirectory", folder, "-t", "nrrd"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # nosec B603
        return [] if done.returncode == 0 and list(Path(folder).glob("*.nrrd")) else [done.stderr]


def row(kind: str, folder: Path) -> list[str]:
    """Errors of one kind of source, object by object; – where there is no such object, or where dcmqi needs a position."""
    files = {path.name: path for path in export_findings(KINDS[kind](folder / "in"), folder / "out")}

    def count(name: str, errors: Callable[[Path], list[str]]) -> str:
        return str(len(errors(files[name]))) if name in files else "–"

    cells = [count(name, dciodvfy_errors) for name in OBJECTS]
    read = [count("report.dcm", dsrdump_errors), count("mask.dcm", highdicom_errors)]
    return [kind, *cells, *read, count("mask.dcm", dcmqi_errors) if "map.dcm" in files else "–"]


def main() -> None:
    """Print or write the table."""
    missing = [name for name in ("dciodvfy", "dsrdump", "segimage2itkimage") if program(name) is None]
    if missing:
        raise SystemExit(f"not installed: {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(kind, Path(folder) / str(i)) for i, kind in enumerate(KINDS)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (HEADER, ["---"] * len(HEADER), *rows))
    if "--write" in sys.argv:
        page = ROOT / "docs" / "dicom.md"
        text = re.sub(r"(<!-- conformance -->\n).*?(<!-- end -->)", rf"\g<1>{table}\n\g<2>", page.read_text(), flags=re.DOTALL)
        page.write_text(text)
    print(table)
    raise SystemExit(any(cell not in ("0", "–") for cells in rows for cell in cells[1:]))


if __name__ == "__main__":
    main()
