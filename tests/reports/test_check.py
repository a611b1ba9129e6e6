"""``reshift check`` finds every problem of a data set in one run, and none in a healthy one."""

import json
import os
import re
import zipfile
from collections import Counter
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from browser import run_in_browser
from helpers import COLUMNS, Cli, noise, save, save_many, write_manifest
from helpers import refused as one_line
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from reshift.data.burned_in import stroke_count, suspected
from reshift.data.phantom import draw, write_phantom
from reshift.reports.check import ADVICE, NOTES, PROBLEMS, CheckResult, check
from reshift.reports.check_page import page, summary, text

DATA = Path(os.environ.get("RESHIFT_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_phantom(tmp_path_factory.mktemp("healthy"), "brain", train=8, test_normal=4, test_abnormal=4).parent


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of every problem."""
    folder = tmp_path_factory.mktemp("broken")
    save_many(folder / "i", 20)
    save(noise(3), folder / "i" / "copy.png")
    save(np.full((32, 32), 7, np.uint8), folder / "i" / "constant.png")
    (folder / "i" / "empty.png").touch()
    (folder / "i" / "damaged.png").write_bytes((folder / "i" / "000.png").read_bytes()[:300])
    save(np.ones((24, 32), bool), folder / "m" / "full.png")
    save(np.zeros((24, 32), bool), folder / "m" / "none.png")
    save(np.ones((9 * 8, 32), bool), folder / "m" / "tall.png")
    (folder / "m" / "bad.png").write_bytes(b"x")
    rows = [f"i/{i:03d}.png,,s{i},0,train," for i in range(8)]
    rows += ["i/copy.png,,c,0,test,", "i/constant.png,,d,0,test,", "i/empty.png,,e,0,test,", "i/damaged.png,,f,0,test,"]
    rows += ["i/absent.png,,g,0,test,", "i/000.png,,again,0,train,", "i/008.png,,s8,1,train,", "i/009.png,,s1,0,test,"]
    rows += ["i/010.png,m/tall.png,s10,1,test,", "i/011.png,m/none.png,s11,1,test,", "i/012.png,m/full.png,s12,0,test,"]
    rows += ["i/013.png,m/bad.png,s13,1,test,", "i/014.png,,s14,1,test,", "i/015.png,m/gone.png,s15,1,test,"]
    rows += ["i/016.png,m/full.png,s16,1,test,", "i/017.png,,s17,7,test,", "i/018.png,,s18,0,trian,"]
    return write_manifest(folder, *rows).parent


def kinds(result: CheckResult) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in result.problems + result.notes:
        found.setdefault(finding.kind, []).extend(sorted(finding.images) or [finding.text])
    return found


def test_all_problems_in_one_run(broken: Path) -> None:
    found = kinds(check(broken, quiet=True))
    assert found == {
        "manifest": ["manifest.csv, line 25: label '7' is neither 0 (normal) nor 1 (abnormal)",
                     "manifest.csv, line 26: split 'trian' is not one of train, val, test"],
        "missing": ["i/absent.png", "i/015.png"],
        "unreadable": ["i/empty.png", "i/damaged.png", "i/013.png"],
        "constant": ["i/constant.png"],
        "repeated": ["i/000.png"],
        "abnormal_training": ["i/008.png"],
        "subject_leak": ["i/001.png", "i/009.png"],
        "duplicate_leak": ["i/003.png", "i/copy.png"],
        "mask_size": ["i/010.png"],
        "mask_empty": ["i/011.png"],
        "mask_on_normal": ["i/012.png"],
        "no_mask": ["i/014.png"],
    }  # fmt: skip


def test_reasons_do_not_repeat_the_path(broken: Path) -> None:
    by_image = {finding.images[:1]: finding.text for finding in check(broken, quiet=True).problems}
    assert by_image["i/empty.png",] == "the file is empty (0 bytes); remove it or copy it again"
    assert by_image["i/010.png",] == "mask 32×72, image 32×24"
    assert by_image["i/013.png",].startswith("mask bad.png: not a PNG")
    assert by_image["i/015.png",] == "mask gone.png"


def test_the_page_says_what_to_do_about_each_finding(broken: Path) -> None:
    assert list(ADVICE) == [*PROBLEMS, *NOTES]
    result = check(broken, quiet=True)
    sheet, found = unescape(page(result, quiet=True)), {finding.kind for finding in result.problems + result.notes}
    assert [kind for kind in ADVICE if ADVICE[kind] in sheet] == [kind for kind in ADVICE if kind in found]


def test_a_healthy_set(healthy: Path) -> None:
    result = check(healthy, quiet=True)
    assert result.healthy
    assert result.problems == []
    found = summary(result)
    assert found["splits"]["train"] == {"images": 8, "normal": 8, "abnormal": 0, "subjects": 2, "masks": 0}
    assert found["splits"]["test"]["abnormal"] == 4
    assert found["sizes"] == {"128×128": 16}
    assert found["depths"] == {"8 bit grey": 16}


def test_the_command(run_cli: Cli, healthy: Path, broken: Path, tmp_path: Path) -> None:
    good = run_cli("check", healthy)
    assert good.code == 0
    assert "no problems found" in good.out
    bad = run_cli("check", broken, "--out", tmp_path / "out")
    assert bad.code == 3
    assert "problem: files that cannot be read (3)" in bad.out
    assert len(bad.out.splitlines()) < 60
    as_json = run_cli("check", broken, "--json")
    assert as_json.code == 3
    assert json.loads(as_json.out) == json.loads((tmp_path / "out" / "check.json").read_text())
    assert not json.loads(as_json.out)["healthy"]


def test_misuse(run_cli: Cli, tmp_path: Path) -> None:
    one_line(run_cli("check", tmp_path / "nothing"), "no such folder")
    one_line(run_cli("check", tmp_path), tmp_path, "no PNG")
    one_line(run_cli("check", write_manifest(tmp_path, "1", header="mask")), "no 'image' column")
    one_line(run_cli("check", write_manifest(tmp_path, ",,,,,")), "lists no images", "the image field is empty")
    one_line(run_cli("check"), "DATA")


def test_a_zipped_folder(run_cli: Cli, healthy: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as file:
        for path in sorted(healthy.rglob("*")):
            file.write(path, Path("data") / path.relative_to(healthy))
    outcome = run_cli("check", tmp_path / "data.zip", "--out", tmp_path / "out")
    assert outcome.code == 0
    assert outcome.out.startswith(f"{tmp_path / 'data.zip'}: 16 images")
    assert page_images(tmp_path / "out" / "check.html") == 16


def page_images(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("<img ")


def test_header_mistakes_do_not_stop_it(tmp_path: Path) -> None:
    save_many(tmp_path / "i", 2)
    write_manifest(tmp_path, "i/000.png,,a,0,train,,x", "i/001.png,,b", header=f"{COLUMNS},lable")
    result = check(tmp_path, quiet=True)
    assert [finding.text for finding in result.problems] == [
        "manifest.csv: unknown column 'lable'; did you mean 'label'?",
        "manifest.csv, line 3: wrong number of fields; quote a field that has a comma in it",
    ]
    assert len(result.cases) == 1


def test_a_plain_folder_of_many_kinds(tmp_path: Path) -> None:
    save(noise(0), tmp_path / "a.png")
    save((noise(1).astype(np.uint16) * 200), tmp_path / "b.png")
    save(np.stack([noise(2), noise(3), noise(4)], axis=-1), tmp_path / "c.jpg")
    save(noise(5, 64, 48).astype(np.float32) / 7 - 3, tmp_path / "d.tif")
    found = summary(check(tmp_path, quiet=True))
    assert found["depths"] == {"8 bit grey": 1, "16 bit grey": 1, "8 bit colour": 1, "float or wide grey": 1}
    assert found["sizes"] == {"32×24": 3, "48×64": 1}
    assert found["greys"][0] == pytest.approx(-3)
    assert "none given" in text(check(tmp_path, quiet=True))


def test_volumes(tmp_path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    voxels = np.random.default_rng(0).integers(0, 900, (24, 20, 18)).astype(np.int16)
    mask = np.zeros(voxels.shape, np.uint8)
    mask[9:12, 9:12, 9] = 1
    for name, array in (
        ("a", voxels),
        ("b", voxels[::-1] // 2),
        ("m", mask),
        ("e", mask * 0),
        ("w", mask[:20]),
        ("c", voxels * 0),
    ):
        nibabel.save(nibabel.Nifti1Image(np.ascontiguousarray(array), np.eye(4)), tmp_path / f"{name}.nii.gz")
    rows = ["b.nii.gz,,b,0,train,", "c.nii.gz,,c,0,train,"]
    for i, of in enumerate(("m", "e", "w", "")):
        (tmp_path / f"a{i}.nii.gz").write_bytes((tmp_path / "a.nii.gz").read_bytes())
        rows.append(f"a{i}.nii.gz,{of and f'{of}.nii.gz'},a,1,test,")
    result = check(write_manifest(tmp_path, *rows), quiet=True)
    found = kinds(result)
    found.pop("no_mask")
    assert found == {
        "constant": ["c.nii.gz"],
        "mask_empty": ["a1.nii.gz"],
        "mask_size": ["a2.nii.gz"],
        "volume_mask": ["a3.nii.gz"],
        "duplicates": ["a0.nii.gz", "a1.nii.gz", "a2.nii.gz", "a3.nii.gz"],
    }
    assert page(result, quiet=True).count("<img ") == 5


def with_text(subject: int, words: str) -> NDArray[np.float32]:
    image = Image.fromarray(draw("ultrasound", subject, 0, abnormal=False).pixels)
    ImageDraw.Draw(image).text((20, 100), words, fill=255)
    return np.asarray(image, dtype=np.float32)


def test_burned_in_text_is_suspected() -> None:
    plain = [stroke_count(with_text(i, "")) for i in range(30)]
    marked = [stroke_count(with_text(i, "LT BREAST 3")) for i in range(30)]
    assert suspected(marked, plain).mean() > 0.9
    assert suspected(plain, plain).mean() <= 0.1  # by its rule, one in twenty
    assert not suspected(marked, plain[:19]).any()  # too few to know what is usual
    large = np.asarray(Image.fromarray(with_text(0, "LT BREAST 3")).resize((384, 384), Image.Resampling.NEAREST))
    assert stroke_count(large) >= 8
    assert stroke_count(np.zeros((20, 20), np.float32)) == 0


def test_suspected_text_is_counted_by_group(tmp_path: Path) -> None:
    rows = []
    for i in range(40):
        save(with_text(i, "RT AXILLA" if i >= 30 else "").astype(np.uint8), tmp_path / f"{i}.png")
        rows.append(f"{i}.png,,s{i},{int(i >= 30)},{'test' if i >= 25 else 'train'},")
    result = check(write_manifest(tmp_path, *rows), quiet=True)
    assert result.healthy
    assert summary(result)["suspected_text"]["test abnormal"] >= 0.9
    assert "of test abnormal" in text(result)


def test_the_sheet_is_one_file_with_flagged_images_first(broken: Path, tmp_path: Path) -> None:
    sheet = page(check(broken, quiet=True), quiet=True)
    assert not re.search(r"(src|href)=\"(?!data:)", sheet)
    assert "<script" not in sheet
    sections = ("Files that do not exist (2)", "Masks of another size", "Abnormal test images without", "Others, train normal")
    order = [sheet.index(f"<h2>{words}") for words in sections]
    assert order == sorted(order)
    assert "images are shown" not in sheet  # all of them are
    dom = run_in_browser(sheet, tmp_path, "document.title = document.documentElement.scrollWidth <= innerWidth ? 'fits' : 'wide'")
    assert "<title>fits</title>" in dom


def test_names_are_text_never_markup(tmp_path: Path) -> None:
    save(noise(0), tmp_path / "<img src=x onerror=alert(1)>\x1b[2J.png")
    result = check(tmp_path, quiet=True)
    assert "<img src=x" not in page(result, quiet=True)
    (tmp_path / "<img src=x onerror=alert(1)>\x1b[2J.png").write_bytes(b"")
    assert "\x1b" not in text(check(tmp_path, quiet=True))


def test_names_that_are_not_utf8(run_cli: Cli, tmp_path: Path) -> None:
    save(noise(0), tmp_path / "in" / "scan\udce9.png")
    (tmp_path / "in" / "e\udce9.png").touch()
    assert run_cli("check", tmp_path / "in", "--out", tmp_path / "out").code == 3
    assert run_cli("check", tmp_path / "in", "--json").code == 3


def test_the_sheet_stays_small_enough_to_mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_many(tmp_path, 30, 128, 128)
    result = check(tmp_path, quiet=True)
    whole = page(result, quiet=True)
    assert len(whole) / 30 * 2000 < 25_000_000  # noise is the worst there is
    monkeypatch.setattr("reshift.reports.check_page.SHOWN", 10)
    some = page(result, quiet=True)
    assert some.count("<img ") == 10
    assert "10 of 30 images are shown" in some
    monkeypatch.setattr("reshift.reports.check_page.THUMBNAIL_BYTES", 1)
    assert page(result, quiet=True).count("<img ") == 1


@pytest.mark.skipif(not (DATA / "busi").exists(), reason="no real images here; set RESHIFT_DATA to a folder of data sets")
def test_breast_ultrasound_has_marks_mostly_beside_lesions() -> None:
    result = check(DATA / "busi", quiet=True)
    assert result.healthy
    marked = {name for finding in result.notes if finding.kind == "text" for name in finding.images}
    of, every = Counter(c.note for c in result.cases if c.name in marked), Counter(c.note for c in result.cases)
    share = {note: of[note] / every[note] for note in every}
    assert 0.25 < share["benign"] < 0.5
    assert 0.08 < share["malignant"] < 0.3
    assert share["normal"] < 0.08


@pytest.mark.skipif(not (DATA / "ixi_t1").exists(), reason="no real images here; set RESHIFT_DATA to a folder of data sets")
def test_healthy_brains_are_healthy() -> None:
    result = check(DATA / "ixi_t1", quiet=True)
    assert result.problems == result.notes == []


RAW = DATA.parent / "raw"
VOLUMES = ("wbsub-M2052_ses-3710_T1w.nii.gz", "wsub-M2052_ses-3710_lesion.nii.gz", "IXI132-HH-1415_T1.nii.gz")


@pytest.mark.skipif(not all((RAW / name).exists() for name in VOLUMES), reason="no real volumes beside the real images")
def test_real_volumes_in_a_bids_folder(tmp_path: Path) -> None:
    places = ("sub-M2052/ses-3710/anat/sub-M2052_ses-3710_T1w", "derivatives/l/sub-M2052/ses-3710/anat/sub-M2052_lesion_mask",
              "sub-132/anat/sub-132_T1w")  # fmt: skip
    for volume, place in zip(VOLUMES, places, strict=True):
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / f"{place}.nii.gz").symlink_to((RAW / volume).resolve())
    (tmp_path / "participants.tsv").write_text("participant_id\tgroup\nsub-M2052\tstroke\nsub-132\tcontrol\n")
    result = check(tmp_path, quiet=True)
    assert result.problems == []
    assert sorted((case.subject, case.label, case.split) for case in result.cases) == [
        ("sub-132", 0, "train"),
        ("sub-M2052", 1, "test"),
    ]
    assert all(facts is not None and len(facts.size) == 3 for facts in result.facts)
