"""Fixtures shared by the tests."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import Cli, Outcome, save_many

pytest_plugins = ["pacs_archive"]  # fixtures that the tests of one folder share

# Before torch is imported, and inherited by every process the tests start: the networks here are so small that a second
# thread only gets in the way, and two test workers with two threads each fight over two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Under nohup the processes that tests start would ignore a closed terminal, which some of them test.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.environ["RESHIFT_CACHE"] = "off"  # a test that wants trained stages to be shared says where


# Files that train, start processes, interpret kernels or open a browser: the longest first. `make test-fast` leaves them out.
SLOW = (
    "test_serve_faults", "test_serve_api", "test_page_access", "test_serve_refusals", "test_page", "test_serve",
    "test_sanity", "test_train", "test_ray", "test_benchmarks", "test_bench_killed", "test_bench_paper",
    "test_interrupted", "test_thin_conv", "test_bench_smoke", "test_bench_stopped", "test_accelerate", "test_methods",
    "test_stagecache", "test_end_to_end", "test_batch_norm_relu", "test_batch_norm_relu_pool", "test_prepare_command",
    "test_brain_masks", "test_add_a_method", "test_adamw", "test_select", "test_sweep", "test_report", "test_figures_maps",
    "test_group_norm", "test_figures", "test_dae", "test_bench_run", "test_crossfit", "test_acquisition_features",
    "test_workers", "test_image_pool", "test_archive", "test_score_nothing_lost", "test_locks", "test_safe_path",
    "test_pixels", "test_attention", "test_autoencoders", "test_conv", "test_check", "test_nearest_code",
    "test_bench_engine", "test_bench_cells", "test_bench_tables", "test_bench_cost", "test_startup",
    "test_evaluate_again", "test_annotations", "test_pixel_intervals", "test_score_again", "test_compare",
    "test_guides", "test_package", "test_site",
    "test_pacs_faults", "test_pacs_score", "test_pacs_killed", "test_pacs_listen", "test_pacs_privacy", "test_serve_privacy",
    "test_pacs_series", "test_readers",
    "test_faults", "test_determinism", "test_supply_chain", "test_fuzz", "test_slow_files", "test_large_images",
    "test_score_dicom", "test_dicom_export", "test_shared_data", "test_pixel_allowance", "test_reshift", "test_acquisition",
    "test_pull", "test_bundle_features", "test_export", "test_cached", "test_runtime", "test_trace", "test_monai",
    "test_large_sizes", "test_privacy", "test_findings_files", "test_dicom_valid", "test_anonymise",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow files and put them first, so that no worker is left with a long one at the end."""
    place = {name: i for i, name in enumerate(SLOW)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))
    for item in items:
        if item.path.stem in place:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """``run_cli("train", "--data", path, …)``: the real entry point, in this process for speed."""
    from reshift.cli.app import main

    def run(*args: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["reshift", *(str(a) for a in args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        shown = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), shown.out, shown.err)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}  # main takes them over
    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def folder_of_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures of 32×24 pixels; read only."""
    return save_many(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory, folder_of_images: Path) -> Path:
    """A bundle of the method that needs no training; copy it before damaging it."""
    from reshift.training.run import resolve, train_run

    config = resolve("brightness", "paper", [{"data": {"size": 32}, "calibrate": {"features": "off"}}])
    return train_run(config, folder_of_images, tmp_path_factory.mktemp("run"))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run benchmarks without worker processes."""
    from bench_suites import run_in_process

    monkeypatch.setattr("reshift.bench.local_engine.run_local", run_in_process)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that archives are unpacked to; every command must leave it empty."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder
