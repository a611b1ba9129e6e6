"""DMD: training without pre-training, the literal preset, and what a benchmark records of the autoencoder."""

from typing import Any

import pytest
import torch
from small_dmd import SMALL, images, make, prepared_stage, step

from reshift.errors import UserError
from reshift.training.run import resolve

LITERAL: dict[str, Any] = {"literal": True, "latent_scale": "none", "codebook": "uniform"}


def test_without_pre_training_the_scale_follows_the_codes_and_the_updates_are_those_of_both_stages() -> None:
    model = make(pretraining=False, stage1_epochs=5, stage2_epochs=7)
    [stage] = model.stages()
    assert stage.epochs == 12
    prepared_stage(model, 0)
    assert stage.begin is not None
    with torch.no_grad():
        stage.begin(iter([images(8)]))
        for i in range(1000):
            model._follow_scale(model.vqvae.encode(images()).z_q, step(i))
        assert float(model.latents(images()).std()) == pytest.approx(1.0, rel=1e-2)
    stage.objectives[0].loss(images(), step())["loss"].backward()  # the scale changes before autograd keeps it
    literal = make(pretraining=False, latent_scale="none")
    literal._follow_scale(images(8), step())
    assert float(literal.scale) == 1.0


def test_literal_is_a_preset_of_four_things() -> None:
    for found in (resolve("dmd", "paper", [{"model": {"literal": True}}]), resolve("dmd", "literal", [])):
        assert (found.model["literal"], found.model["latent_scale"], found.model["codebook"]) == (True, "none", "uniform")
        assert (found.train.amp, found.train.clip) == ("off", 0.0)
    quick = resolve("dmd", "quick", [{"model": {"literal": True}}])
    assert (quick.model["restart_after"], quick.model["stage1_epochs"]) == (0, 60)
    plain = resolve("dmd", "paper", [])
    assert (plain.model["literal"], plain.model["codebook"], plain.train.clip) == (False, "encoder", 1.0)
    assert resolve("dmd", "paper", [{"model": {"literal": True}, "train": {"clip": 1.0}}]).train.clip == 1.0  # said otherwise
    with pytest.raises(UserError, match="literal = true means"):
        resolve("dmd", "paper", [{"model": {"literal": True, "latent_scale": "unit"}}])
    model = make(**LITERAL)
    before = model.vqvae.codebook.detach().clone()
    stage = prepared_stage(model, 0)
    with torch.no_grad():
        stage.begin(iter([images(8)]))
    assert torch.equal(model.vqvae.codebook, before)
    assert float(before.abs().max()) <= 1.0 / SMALL["codes"]


def test_diagnostics_count_codes_over_all_batches() -> None:
    model = make().eval()
    with torch.no_grad():
        model.vqvae.fit_codebook(iter([images(8)]))
        found, halves = model.diagnostics([images(8)]), model.diagnostics(images(8).split(4))
        q = model.vqvae.encode(images(8))
        error = float((images(8) - model.vqvae.decode(q.z_q)).abs().mean())
    assert found["code_usage"] == len(q.k.unique()) / SMALL["codes"]
    assert found["reconstruction_error"] == pytest.approx(error, rel=1e-5)
    assert halves == pytest.approx(found, rel=1e-4)
