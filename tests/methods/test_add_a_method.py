"""docs/add-a-method.md: its example is the file in examples/, does what the page says, and only code the user named is run."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from helpers import BRIGHTNESS, Cli, refused

import reshift
from reshift import methods
from reshift.data.phantom import write_phantom
from reshift.errors import UserError

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "linear_dae.py"
LOCATION = "linear_dae:LinearDAE"
SMALL = ("--profile", "quick", "--set", "data.size=32", "--set", "calibrate.features=off", "--device", "cpu")


def code_on_the_page() -> str:
    """Return the first Python block of the page."""
    return (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder with the page's code in it, as the current folder; imports from it are undone afterwards."""
    (tmp_path / "linear_dae.py").write_text(code_on_the_page(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(methods.VARIABLE, raising=False)
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    assert sys.path == path
    undo_imports(before)


def undo_imports(before: set[str]) -> None:
    """Undo the test's imports, so that Python imports again as a new process would."""
    for name in set(sys.modules) - before:
        if name.split(".")[0] in {"linear_dae", "stranger", "lazy"}:
            del sys.modules[name]


@pytest.fixture(scope="module")
def chest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_phantom(tmp_path_factory.mktemp("chest"), "chest", size=64)


def named_by(bundle: Path, location: str) -> Path:
    """Write another method into a bundle's config."""
    about = json.loads((bundle / "config.json").read_text())
    about["config"]["method"] = location
    (bundle / "config.json").write_text(json.dumps(about))
    return bundle


def test_the_page_shows_the_example() -> None:
    assert code_on_the_page().encode() == EXAMPLE.read_bytes()
    assert len(code_on_the_page().splitlines()) < 80


def test_the_example_is_better_than_brightness(run_cli: Cli, folder: Path, chest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(sys.modules)
    done = run_cli("train", "--data", chest, "--out", "mine", "--method", LOCATION, *SMALL)
    assert done.code == 0, done.err
    assert json.loads(Path("mine/bundle/config.json").read_text())["config"]["method"] == LOCATION
    assert run_cli("train", "--data", chest, "--out", "reference", *BRIGHTNESS).code == 0
    undo_imports(before)
    line = refused(run_cli("info", "mine/bundle"), "config.json", LOCATION, f"{methods.VARIABLE}={LOCATION}")
    assert "damaged" not in line
    assert "linear_dae" not in sys.modules
    monkeypatch.setenv(methods.VARIABLE, f"other:One,{LOCATION}")
    metrics = {}
    for name in ("mine", "reference"):
        assert run_cli("evaluate", f"{name}/bundle", "--data", chest, "--out", f"{name}/evaluation").code == 0
        metrics[name] = json.loads(Path(name, "evaluation", "metrics.json").read_text())
    assert metrics["mine"]["method"] == LOCATION
    assert metrics["mine"]["image"]["auc"] > max(0.75, metrics["reference"]["image"]["auc"] + 0.1)
    assert metrics["mine"]["pixel"]["ap"] > max(0.2, metrics["reference"]["pixel"]["ap"] + 0.1)
    compared = run_cli("compare", "mine/evaluation", "reference/evaluation", "--out", "compare")
    assert compared.code == 0
    assert LOCATION in compared.out


def test_the_example_keeps_the_protocol(run_cli: Cli, folder: Path, chest: Path) -> None:
    short = ("--set", "model.epochs=1", "--set", "data.channels=3")
    for name in ("a", "b"):
        assert run_cli("train", "--data", chest, "--out", name, "--method", LOCATION, *SMALL, *short).code == 0
    models = [reshift.load(f"{name}/bundle", "cpu") for name in ("a", "b")]
    images = sorted((chest.parent / "images").iterdir())[:3]
    together, again = (model.predict(list(images)) for model in models)
    for i, image in enumerate(images):
        [alone] = models[0].predict(image)
        assert alone.score == together[i].score == again[i].score
        assert np.isfinite(alone.heatmap).all()
        np.testing.assert_array_equal(alone.heatmap, together[i].heatmap)
        np.testing.assert_array_equal(alone.heatmap, again[i].heatmap)
    wrong = ("--method", LOCATION, *SMALL, "--set", "model.side=0.01")
    refused(run_cli("train", "--data", chest, "--out", "c", *wrong), f"method '{LOCATION}'", "model.side", "less than a pixel")


def test_a_file_never_decides_which_code_runs(
    run_cli: Cli, folder: Path, tiny_bundle: Path, chest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("stranger.py").write_text("open('was here', 'w').close()")
    Path("theirs.toml").write_text('method = "stranger:Method"')
    bundle = named_by(shutil.copytree(tiny_bundle, folder / "bundle"), "stranger:Method")
    monkeypatch.setenv(methods.VARIABLE, "stranger:Another, stranger")
    for command in (("info", bundle), ("score", bundle, chest, "--out", "s"), ("calibrate", bundle, "--data", chest)):
        refused(run_cli(*command), bundle / "config.json", "stranger:Method", "outside reshift")
    with pytest.raises(UserError, match="outside reshift"):
        reshift.load(bundle)
    for given in (("--config", "theirs.toml"), ("--set", "method=stranger:Method")):
        refused(run_cli("train", "--data", chest, "--out", "run", *given), "stranger:Method", "outside reshift")
    assert not Path("was here").exists()
    assert "stranger" not in sys.modules
    refused(run_cli("train", "--data", chest, "--out", "run", "--method", "stranger:Method"), "has no class 'Method'")
    assert Path("was here").exists()


def test_an_imported_module_may_be_named_but_must_hold_a_method(
    run_cli: Cli, folder: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Path(shutil.copytree(tiny_bundle, folder / "bundle"))
    assert run_cli("info", named_by(bundle, "reshift.methods.trivial:Brightness")).code == 0
    lazy, asked = ModuleType("lazy"), list[str]()
    vars(lazy)["__getattr__"] = asked.append
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    for location in ("os:system", "torch:ops", "lazy:Method", "reshift.methods.trivial:_grey"):
        refused(run_cli("info", named_by(bundle, location)), location, "has no class")
    assert asked == []
    refused(run_cli("info", named_by(bundle, "pathlib:Path")), "is not a subclass of Detector", "docs/add-a-method.md")


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("nowhere:Method", ("No module named 'nowhere'", "run in the folder that holds it")),
        ("linear_dae:Linear", ("module 'linear_dae' has no class 'Linear'",)),
        ("linear_dae:LinearDAESettings", ("is not a subclass of Detector",)),
        ("stranger:Method", ("importing 'stranger' failed (SyntaxError: ",)),
        ("linear_dae.py:LinearDAE", ("importing 'linear_dae.py' failed",)),
        ("./linear_dae.py:LinearDAE", ("write it as package.module:Class",)),
        ("linear_dae:", ("write it as package.module:Class",)),
        (":LinearDAE", ("write it as package.module:Class",)),
        ("linear_dae;touch x:LinearDAE", ("write it as package.module:Class",)),
    ],
)
def test_a_wrong_location_is_one_line(run_cli: Cli, folder: Path, chest: Path, location: str, words: tuple[str, ...]) -> None:
    Path("stranger.py").write_text("class Method(:\n")
    refused(run_cli("train", "--data", chest, "--out", "run", "--method", location), *words)
    assert not Path("run").exists()


def test_a_file_in_the_current_folder_does_not_replace_a_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tabnanny", raising=False)
    Path("tabnanny.py").write_text("raise RuntimeError('not the standard library')")
    Path("stranger.py").write_text("import tabnanny\nfrom linear_dae import LinearDAE as Method\n")
    assert methods.get("stranger:Method", given=True).profiles["quick"]["data"] == {"size": 64}
