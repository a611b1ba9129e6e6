"""The table of findings in the evaluation report: images by area, volumes as a whole, and whether there is a lesion."""

import re
from html import unescape
from pathlib import Path

import numpy as np
from helpers import Cli, save
from volumes import canonical_affine, save_nifti, stored

STORED = ((2, 1, 0), (False, False, False))
SPACING = (3.0, 1.0, 1.0)  # square pixels: nothing is resampled


def volume(path: Path, value: float, at: int = 10) -> Path:
    array = np.full((6, 32, 32), 40.0) + np.random.default_rng(at).integers(0, 9, (6, 32, 32))
    array[2:4, at : at + 6, 8:16] = value
    return save_nifti(path, *stored(array, STORED, canonical_affine(array.shape, SPACING)))


def rows(page: str) -> list[list[str]]:
    table = page[page.index("<h2>Findings") :]
    found = re.findall(r"<tr>(.*?)</tr>", table[: table.index("</table>")], flags=re.DOTALL)
    return [
        [unescape(re.sub("<.*?>", "", cell)).strip() for cell in re.findall(r"<t[dh].*?</t[dh]>", row, re.DOTALL)]
        for row in found
    ]


def test_findings_are_listed_with_their_truth(run_cli: Cli, tiny_bundle: Path, tmp_path: Path) -> None:
    square, mask = np.full((32, 32), 30, dtype=np.uint8), np.zeros((32, 32), dtype=np.uint8)
    square[0, 0] = 31
    for name, at in (("hit.png", 8), ("miss.png", 20)):
        image = square.copy()
        image[at : at + 6, 8:14] = 255
        save(image, tmp_path / name)
    mask[8:14, 8:14] = 255
    save(mask, tmp_path / "mask.png")
    volume(tmp_path / "head.nii.gz", 900.0)
    lesion = np.zeros((6, 32, 32))
    lesion[2:4, 10:16, 8:16] = 1
    save_nifti(tmp_path / "lesion.nii.gz", *stored(lesion, STORED, canonical_affine(lesion.shape, SPACING)))
    lines = ["hit.png,mask.png,a,1,test", "miss.png,mask.png,b,1,test", "head.nii.gz,lesion.nii.gz,c,1,test"]
    (tmp_path / "manifest.csv").write_text("\n".join(["image,mask,subject,label,split", *lines]) + "\n")
    assert run_cli("evaluate", tiny_bundle, "--data", tmp_path / "manifest.csv", "--out", tmp_path / "out").code == 0
    header, *found = rows((tmp_path / "out" / "report.html").read_text())
    assert header[0] == "Image"
    by_name = {row[0].split("#")[0]: row for row in found}
    assert set(by_name) == {"hit.png", "miss.png", "head.nii.gz"}
    assert {name: row[-1] for name, row in by_name.items()} == {"hit.png": "yes", "miss.png": "no", "head.nii.gz": "yes"}
    assert by_name["hit.png"][1:4] == ["1 of 1", "36 px²", "7.071 px"]
    assert by_name["head.nii.gz"][2] == f"{2 * 6 * 8 * 3.0:.4g} mm³"
    assert by_name["head.nii.gz"][4].endswith("(RAS+)")
