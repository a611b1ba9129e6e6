"""Mistakes of a suite that only its cells would show, after the training: refused while it is planned."""

from pathlib import Path

import pytest
from bench_suites import DAE, HEAD, SWEEP, write_suite
from helpers import Cli

from reshift.bench.plan import plan
from reshift.bench.suite import load_suite
from reshift.config import Config
from reshift.errors import UserError

TRAINED = '[[rows]]\nmethod = "dae"\nset = { model = { widths = [4, 8] } }\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TRAINED + "predict = { model = { widths = [4, 4] } }\n", "row 'dae': model.widths changes what is trained; give it"),
        (
            TRAINED + 'predict = { model = { noise_std = 0.1, map = "squared" } }\n',
            "row 'dae': model.noise_std changes what is trained; give it under 'set', not 'predict'",
        ),
        (
            SWEEP.replace("model.map", "model.noise_std").replace('"absolute", "squared"', "0.1, 0.2"),
            "row 'DAE noise_std=0.1': model.noise_std changes what is trained; leave out 'inference'",
        ),
        (
            DAE.replace("{ epochs = 6 }", "{ noise_grid = 9 }"),
            "'noise_grid' is not a number of epochs; known: epochs",
        ),
        (
            '[[rows]]\nmethod = "dmd"\nupdates = { codes = 64 }\n',
            "row 'dmd': updates: 'codes' is not a number of epochs; known: stage1_epochs, stage2_epochs",
        ),
        ('[[rows]]\nmethod = "patchcore"\nupdates = { bank = 10 }\n', "updates: 'bank' is not a number of epochs; patchcore has"),
    ],
)
def test_what_would_fail_only_after_training_is_refused_before_any_data_is_read(tmp_path: Path, text: str, words: str) -> None:
    suite = load_suite(write_suite(tmp_path, HEAD, text))
    with pytest.raises(UserError) as caught:
        plan(suite, None, tmp_path / "out")
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_networks_are_built_once_and_only_for_rows_that_predict_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Config] = []

    def build(config: Config) -> None:
        built.append(config)
        raise UserError("the weights are not there")

    monkeypatch.setattr("reshift.bench.plan.build", build)
    more = SWEEP.replace("DAE", "again").replace("model.map", "model.floor").replace('"absolute", "squared"', "-0.9, -0.8")
    assert len(plan(load_suite(write_suite(tmp_path, HEAD, DAE)), None, tmp_path / "out").specs) == 1
    assert built == []
    assert len(plan(load_suite(write_suite(tmp_path, HEAD, DAE, SWEEP, more)), None, tmp_path / "out").specs) == 5
    assert len(built) == 3  # as trained, with another map, with another floor; what cannot be built is left to its cells


def test_without_lpips_a_suite_that_wants_restorations_measured_says_so(run_cli: Cli, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, "normative = true\n" + HEAD, DAE)
    found = run_cli("bench", suite, "--out", tmp_path / "out", "--tables-only")
    assert "reshift weights pull lpips-alexnet" in found.err + found.out
