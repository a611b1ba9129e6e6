"""Suites: the cells they describe, the messages about a mistake, and the suites of this repository."""

from pathlib import Path
from typing import Any

import pytest
from bench_suites import BRIGHTNESS, DAE, HEAD, SUITES, SWEEP, write_suite

from reshift.bench.plan import group_tasks, plan
from reshift.bench.suite import Entry, Suite, load_suite
from reshift.bench.tables.paper import paper
from reshift.bench.version import PACKAGE, code_version, imported_files, strip_code
from reshift.datasets import DATASETS
from reshift.errors import UserError
from reshift.training.run import resolve

SMALL = "phantom = { images = 8, test_normal = 2, test_abnormal = 2, size = 32 }"


def test_rows_by_datasets_by_seeds(tmp_path: Path) -> None:
    other = '[datasets.other]\nphantom = { seed = 1 }\ntrained_on = "brain"\n'
    rows = '[[rows]]\nmethod = "diffuse"\n[[rows]]\nmethod = "dmd"\nseeds = [7]\ndatasets = ["other"]\nlabel = "Ours, all"\n'
    suite = load_suite(write_suite(tmp_path, "seeds = [0, 1]", HEAD, other, rows))
    assert [entry.name for entry in suite.entries] == [
        "brain-diffuse-0", "brain-diffuse-1", "other-diffuse-0", "other-diffuse-1", "other-ours-all-7",
    ]  # fmt: skip
    assert [entry.group for entry in suite.entries[3:]] == ["baseline", "ours"]
    assert {entry.trained_on for entry in suite.entries} == {"brain"}
    assert suite.entries[0].row == "diffuse†"


def test_a_sweep_is_a_row_per_value(tmp_path: Path) -> None:
    trained = '[[sweeps]]\nmethod = "dae"\nsetting = "model.noise_std"\nvalues = [0.1, 0.2]\n'
    suite = load_suite(write_suite(tmp_path, HEAD, SWEEP, trained))
    assert [entry.row for entry in suite.entries] == [
        "DAE map=absolute", "DAE map=squared", "dae noise_std=0.1", "dae noise_std=0.2",
    ]  # fmt: skip
    assert suite.entries[1].setting == {"name": "model.map", "value": "squared"}
    assert (suite.entries[1].predict, suite.entries[1].layers[-1]) == ({"model": {"map": "squared"}}, {})
    assert (suite.entries[3].predict, suite.entries[3].layers[-1]) == ({}, {"model": {"noise_std": 0.2}})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + '[[rows]]\nmethod = "dea"\n', "row 1: unknown method 'dea'; did you mean 'dae'?"),
        (HEAD + BRIGHTNESS + '[[rows]]\nmetod = "dae"\nmethod = "dae"\n', "'row 2.metod'; did you mean 'row 2.method'?"),
        (HEAD + '[[rows]]\nmethod = "dae"\ndatasets = ["brian"]\n', "row 1: unknown data set 'brian'; did you mean 'brain'?"),
        ("sed = [1]\n" + HEAD + BRIGHTNESS, "unknown setting 'sed'; did you mean 'seeds'?"),
        (HEAD + '[datasets.x]\nmanifest = "m.csv"\ntrained_on = "brian"\n' + BRIGHTNESS, "did you mean 'brain'?"),
        (HEAD + "[datasets.x]\n" + BRIGHTNESS, "data set 'x' needs a manifest or a phantom"),
        (HEAD + '[datasets.x]\nmanifst = "a"\n' + BRIGHTNESS, "'datasets.x.manifst'; did you mean 'datasets.x.manifest'?"),
        (HEAD + BRIGHTNESS + BRIGHTNESS, "2 rows are called 'brightness'"),
        (HEAD, "has no rows"),
        (HEAD + '[[rows]]\nmethod = "dae"\nseeds = [1, 1]\n', "row 1: seeds [1, 1]"),
        (
            HEAD + '[[rows]]\nmethod = "dae"\npredict = { train = { lr = 1.0 } }\n',
            "predict may have the tables model and",
        ),
        (HEAD + '[[sweeps]]\nmethod = "dae"\nsetting = "map"\nvalues = [1]\n', "e.g. model.map"),
        (HEAD + "[[rows]]\nmethod = \n", "not valid TOML"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_name(tmp_path: Path, text: str, words: str) -> None:
    path = write_suite(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_suite(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_an_unknown_setting_of_a_method(tmp_path: Path) -> None:
    suite = load_suite(write_suite(tmp_path, HEAD, '[[rows]]\nmethod = "dae"\nset = { model = { noise = 1 } }\n'))
    with pytest.raises(UserError, match=r"row 'dae': unknown setting 'model.noise'; did you mean 'model.noise_std'"):
        plan(suite, None, tmp_path / "out")


def test_an_unknown_feature_network(tmp_path: Path) -> None:
    for method, value in (("patchcore", '"dinov2-smal"'), ("reshift", '["efficientnet-lite0", "dinov2-smal"]')):
        row = f'[[rows]]\nmethod = "{method}"\nset = {{ model = {{ features = {value} }} }}\n'
        with pytest.raises(UserError, match=rf"row '{method}': unknown .* 'dinov2-smal'; did you mean 'dinov2-small'"):
            plan(load_suite(write_suite(tmp_path, HEAD, row)), None, tmp_path / "out")
    for value in ('"my/weights.safetensors"', '"tinyvit-sam"'):  # the cell will say whether they are there
        row = f'[[rows]]\nmethod = "patchcore"\nset = {{ model = {{ features = {value} }} }}\n'
        assert plan(load_suite(write_suite(tmp_path, HEAD, row)), None, tmp_path / "out").specs


def test_a_suite_cannot_run_code_that_the_user_does_not_trust(tmp_path: Path) -> None:
    suite = load_suite(write_suite(tmp_path, HEAD, '[[rows]]\nmethod = "antigravity:Flight"\n'))
    with pytest.raises(UserError, match="RESHIFT_METHODS"):
        plan(suite, None, tmp_path / "out")


def test_updates_become_epochs_by_the_number_of_images(tmp_path: Path) -> None:
    specs = plan(load_suite(write_suite(tmp_path, HEAD, DAE)), None, tmp_path / "out").specs
    assert specs[0].config["model"]["epochs"] == 3  # 12 images to learn from (16 less 4 held out) in batches of 8: two updates


def test_cells_that_differ_at_inference_share_a_model(tmp_path: Path) -> None:
    found = plan(load_suite(write_suite(tmp_path, HEAD, DAE, SWEEP)), None, tmp_path / "out").specs
    plain, absolute, squared = found
    assert plain.key == absolute.key != squared.key  # the plain row has the default value
    assert absolute.predict == {}
    assert squared.predict == {"model": {"map": "squared"}}
    [task] = group_tasks(found, tmp_path)
    assert [spec.name for spec in task.cells] == [plain.name, squared.name]


def test_a_key_depends_on_what_decides_the_result_and_on_nothing_else(tmp_path: Path) -> None:
    def key(*parts: str, out: str = "out") -> str:
        return plan(load_suite(write_suite(tmp_path, *parts)), None, tmp_path / out).specs[0].key

    plain = key(HEAD, DAE)
    assert key(HEAD.replace("tiny", "other"), DAE, "label = 'A'", out="elsewhere") == plain
    assert key(HEAD.replace("checkpoint_seconds = 0.0", 'device = "cpu"'), DAE) == plain
    different = [
        key("seeds = [1]", HEAD, DAE),
        key(HEAD.replace("test_normal = 4", "test_normal = 6"), DAE),
        key(HEAD, DAE, "profile = 'paper'"),
        key("normative = true", HEAD, DAE),
        key(HEAD, DAE, "predict = { calibrate = { pixel_quantile = 0.9 } }"),
    ]
    assert len({plain, *different}) == 6


def test_a_key_depends_on_the_distance_of_restorations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = load_suite(write_suite(tmp_path, "normative = true", HEAD, DAE))
    keys = set[str]()
    for there in (False, True):
        monkeypatch.setattr("reshift.bench.plan.available", lambda _name, there=there: there)
        keys.add(plan(suite, None, tmp_path / "out").specs[0].key)
    assert len(keys) == 2


def test_comments_and_docstrings_do_not_change_the_code_version() -> None:
    one = 'def f() -> int:\n    """Say."""\n    return 1  # x\n'
    other = '"""Title."""\n# why\n\ndef f() -> int:\n    """Say otherwise,\n    at length."""\n\n    return 1  # x\n'
    assert strip_code(one) == strip_code(other) != strip_code(one.replace("return 1", "return 2"))


def test_the_code_of_a_cell_is_found_by_its_imports() -> None:
    def files(*modules: str) -> set[str]:
        return {path.relative_to(PACKAGE).as_posix() for path in imported_files(modules)}

    cell = files("reshift.bench.compute")
    assert {"config.py", "data/read.py", "evaluation/evaluate.py", "inference/model.py", "training/loop.py"} <= cell
    assert not [name for name in cell if name.startswith(("cli/", "reports/", "errors.py"))]
    assert "core/masks.py" in files("reshift.methods.dmd.method")
    assert not {"core/masks.py", "methods/dmd/method.py", "bench/compute.py"} & files("reshift.methods.dae")
    assert code_version("dae") != code_version("dmd")
    assert code_version("thor-simplex") == code_version("thor-gaussian")  # the same file


def test_missing_data_blocks_only_its_own_cells(tmp_path: Path) -> None:
    sets = f'[datasets.gone]\nmanifest = "gone/manifest.csv"\n[datasets.by_gone]\n{SMALL}\ntrained_on = "gone"\n'
    suite = load_suite(write_suite(tmp_path, HEAD, sets, BRIGHTNESS))
    found = plan(suite, tmp_path, tmp_path / "out")
    assert [spec.name for spec in found.specs] == ["brain-brightness-0"]
    assert [blocked.entry.dataset for blocked in found.blocked] == ["gone", "by_gone"]
    assert str(tmp_path / "gone" / "manifest.csv") in found.blocked[1].why
    assert "--data" in plan(suite, None, tmp_path / "out").blocked[0].why


def test_a_data_set_without_test_images_only_lends_its_models(tmp_path: Path) -> None:
    from reshift.data.phantom import write_phantom

    write_phantom(tmp_path / "normals", train=16, test_normal=0, test_abnormal=0, size=32)
    sets = f'[datasets.normals]\nmanifest = "normals/manifest.csv"\n[datasets.by_normals]\n{SMALL}\ntrained_on = "normals"\n'
    found = plan(load_suite(write_suite(tmp_path, HEAD, sets, BRIGHTNESS)), tmp_path, tmp_path / "out")
    assert [spec.dataset for spec in found.specs] == ["brain", "by_normals"]
    assert found.blocked == []


# ---- the suites of this repository: every method, data set and setting that they name exists ----


def suite(name: str) -> Suite:
    return load_suite(SUITES / f"{name}.toml")


def rows(name: str) -> dict[str, Entry]:
    return {entry.row: entry for entry in suite(name).entries}


@pytest.mark.parametrize("name", sorted(path.stem for path in SUITES.glob("*.toml")))
def test_every_row_resolves(name: str) -> None:
    for entry in rows(name).values():
        config = resolve(entry.method, entry.profile, [*entry.layers, {"model": dict(entry.updates)}])
        resolve(entry.method, entry.profile, [*entry.layers, entry.predict])
        assert config.method == entry.method


def test_the_paper_suite_is_the_papers() -> None:
    found = suite("paper")
    assert set(found.datasets) <= set(DATASETS)
    assert {entry.seed for entry in found.entries} == {0, 1, 2, 3, 4}
    assert {entry.method for entry in found.entries} == set(paper()["methods"])
    printed = {row for table in ("image", "pixel") for row in paper()["tables"][table]["rows"]}
    main = {name for name, entry in rows("paper").items() if entry.group != "thresholds"}
    assert main == printed | {"DMD, literal"}
    assert set(rows("paper")) - main == {f"{name}, 20% held out" for name in main}
    assert found.datasets["wmh"].trained_on == "brats2021"
    assert found.normative
    assert {paper()["datasets"][name][0] for name in found.datasets} == {"BraTS2021", "BUSI", "VinDr-CXR", "ATLAS 2.0", "WMH"}


@pytest.mark.parametrize("name", ["paper", "ablation", "sensitivity", "claims"])
def test_the_papers_suites_learn_from_all_normals_and_report_both_rules(name: str) -> None:
    for entry in rows(name).values():
        config = resolve(entry.method, entry.profile, entry.layers)
        held_out = entry.group == "thresholds"
        assert (config.data.holdout, config.calibrate.reference) == ((0.2, "held-out") if held_out else (0.0, "training"))
    assert any(entry.group == "thresholds" for entry in rows(name).values())


def test_dmd_makes_the_papers_updates_on_every_set() -> None:
    images, batch = 4211, resolve("dmd", "paper", []).train.batch
    settings = resolve("dmd", "paper", []).model
    per_epoch = -(-images // batch)
    wanted = {name: settings[name] * per_epoch for name in ("stage1_epochs", "stage2_epochs")}
    assert wanted == {"stage1_epochs": 48_000, "stage2_epochs": 57_600}
    mine = [entry for entry in suite("claims").entries if entry.method == "dmd"]
    assert all(entry.updates == wanted for entry in mine)
    assert {entry.dataset for entry in mine} == {"lgg_flair", "wmh_flair", "busi", "arc_t1_stroke", "nih_cxr"}
    assert {entry.seed for entry in mine if entry.row == "DMD"} == {0, 1, 2}


def test_every_competitor_of_the_paper_is_trained_at_full_strength() -> None:
    found = rows("competitors")
    assert {entry.method for entry in found.values()} == {*paper()["methods"], "patchcore"} - {"dmd"}
    for entry in found.values():
        stages = resolve(entry.method, entry.profile, entry.layers).model
        assert set(entry.updates) == {name for name in stages if name.endswith("epochs")}
        assert rows("paper").get(entry.row, entry).updates == entry.updates  # one budget in all suites
        config = resolve(entry.method, entry.profile, entry.layers)
        assert (config.data.holdout, config.train.patience, config.train.schedule) == (0.2, 2000, "constant")
        assert config.calibrate.reference == "held-out"
    strides = {name: resolve(e.method, e.profile, [*e.layers, e.predict]).model.get("stride", 1) for name, e in found.items()}
    assert {name for name, stride in strides.items() if stride != 1} == {"DDPM, every 5th step"}


@pytest.mark.parametrize("name", ["ablation", "real", "claims"])
def test_an_ablation_switches_one_component_off(name: str) -> None:
    variants = [entry for entry in rows(name).values() if entry.group == "ablation" and entry.profile != "literal"]
    off = [[flag for layer in entry.layers for flag, on in layer.get("model", {}).items() if on is False] for entry in variants]
    assert sorted(off) == sorted([flag] for flag in paper()["variants"])
    assert rows(name)["DMD"].group == "ours"


def test_the_sweeps_are_of_inference_where_nothing_is_trained_anew() -> None:
    values: dict[str, list[float]] = {}
    for entry in rows("sensitivity").values():
        if entry.setting is None or entry.method != "dmd":
            continue
        values.setdefault(entry.setting["name"], []).append(entry.setting["value"])
        assert bool(entry.predict) == (entry.setting["name"] != "model.lambda_cls")
    assert values["model.t_star"] == list(range(100, 1000, 100))
    assert 0.1 in values["model.lambda_cls"]
    assert 4 in values["model.mask_side"]
    assert {entry.seed for entry in suite("sensitivity").entries} == {0, 1, 2}


@pytest.mark.parametrize("name", ["sensitivity", "claims"])
def test_three_methods_share_the_figure_of_timesteps(name: str) -> None:
    drawn = [entry for entry in rows(name).values() if entry.setting and entry.setting.get("figure") == "timestep"]
    places: dict[str, list[Any]] = {}
    for entry in drawn:
        value = entry.setting["value"] if entry.setting else None
        at = entry.setting.get("at", value[0] if isinstance(value, list) else value) if entry.setting else None
        places.setdefault(entry.method, []).append(at)
        config = resolve(entry.method, entry.profile, [*entry.layers, entry.predict]).model
        if entry.method == "madad":  # the rule: step k of its ten is t = 100 k
            assert config["start"] * 1000 / config["timesteps"] == at
    assert places == {method: list(range(100, 1000, 100)) for method in ("dmd", "cddpm", "madad")}


def test_real_names_the_six_sets_and_tests_on_those_that_have_disease() -> None:
    found = suite("real")
    folders = {Path(data.manifest or "").parts[0] for data in found.datasets.values()}
    assert folders == {"lgg_flair", "wmh_flair", "busi", "arc_t1_stroke", "nih_cxr", "ixi_t1"}
    assert found.datasets["wmh_flair"].trained_on == "lgg_flair"
    assert "ixi_t1" not in {entry.dataset for entry in found.entries}
    assert {entry.trained_on for entry in found.entries} == {"lgg_flair", "busi", "arc_t1_stroke", "nih_cxr", "ixi_t1"}
    assert {entry.seed for entry in found.entries} == {0, 1, 2}
