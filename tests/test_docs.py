"""The documentation agrees with the repository: tables with results/, links with files, lines that fit."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

from bench_cells import broken, cell

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
         ROOT / "results" / "README.md", ROOT / "benchmarks" / "README.md"]  # fmt: skip
MAX_LINE = 140


def test_tables_agree_with_the_results() -> None:
    done = subprocess.run([sys.executable, "tools/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_cells_become_rows(tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    cells = [cell("DAE", seed=0, image={"auc": 0.75}), cell("DAE", seed=1, pixel={"ap": None}), broken("AE")]
    for number, found in enumerate(cells):
        (tmp_path / "cells" / f"{number}.json").write_text(json.dumps(found))
    out = tmp_path / "rows.csv"
    subprocess.run([sys.executable, "tools/collect.py", str(tmp_path / "cells"), str(out)], cwd=ROOT, check=True)
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["seed"], row["image.auc"], row["pixel.ap"]) for row in rows] == [("0", "0.75", ""), ("1", "", "")]


def test_links_lead_to_files() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())]
    missing = [(page.name, link) for page, link in links if not link.startswith("http") and not (page.parent / link).exists()]
    assert not missing


def test_lines_of_prose_are_short() -> None:
    prose = {page: re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).splitlines() for page in PAGES}
    long = [(page.name, line) for page, lines in prose.items() for line in lines if len(line) > MAX_LINE and line[0] != "|"]
    assert not long


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    assert not [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md" and f"({page.name})" not in index]


def test_commands_name_scripts_that_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"(?:benchmarks|tools)/\w+\.py", page.read_text())}
    assert not [name for name in named if not (ROOT / name).exists()]
