"""Reshift: what its discriminators learn from, how its two witnesses are combined, and what it does without features."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import Cli
from torch import Tensor
from torch.nn import functional as F

from reshift.data.phantom import write_phantom
from reshift.methods.detector import Step
from reshift.methods.reshift import method as module
from reshift.methods.reshift import settings as reshift_settings
from reshift.methods.reshift.method import Reshift
from reshift.methods.reshift.settings import ReshiftSettings
from reshift.methods.reshift.shifts import Shifted, anatomy, shift
from reshift.nets.dense import DenseDiscriminator

DMD = {"widths": (8, 16), "d_z": 8, "codes": 16, "unet_widths": (16, 32), "classifier_widths": (8, 8, 8), "classifier_hidden": 8}
SMALL: dict[str, Any] = {
    "steps": 2, "members": 2, "widths": (8, 8, 8, 8), "bank": 32, "sample": 500, "side": 64, "dmd": DMD, "strokes": 0.0,
}  # fmt: skip
SIZE = 32


def build(**settings: Any) -> Reshift:
    torch.manual_seed(0)
    return Reshift(ReshiftSettings(**(SMALL | settings)), SIZE, 1)


def fill_memory(model: Reshift) -> None:
    """Fill the memory of every fold from eight images of its own."""
    for fold in range(model.folds):
        model._fill_memory([images(8, seed=100 * fold)], fold)


def images(count: int = 4, seed: int = 0) -> Tensor:
    x = torch.rand(count, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(seed)) - 0.5
    x[:, :, :4] = -1.0  # black above the head
    return x


def test_the_discriminator_takes_image_and_features() -> None:
    torch.manual_seed(0)
    net = DenseDiscriminator(1, (8, 16, 16), (5, 7))
    x, maps = torch.randn(2, 1, 16, 16), [torch.randn(2, 5, 9, 9), torch.randn(2, 7, 3, 3)]
    out = net(x, maps)
    assert out.shape == (2, 1, 16, 16)
    assert not torch.equal(out, net(x, [maps[0], maps[1] + 1.0]))
    assert not torch.equal(out, net(x, [maps[0] + 1.0, maps[1]]))
    assert DenseDiscriminator(3, (8, 16))(torch.randn(1, 3, 8, 8)).shape == (1, 1, 8, 8)
    with pytest.raises(ValueError, match="2 feature maps need at least 3 widths"):
        DenseDiscriminator(1, (8, 16), (5, 7))


def test_stages_in_order() -> None:
    model = build()
    stages = model.stages()
    assert [stage.name for stage in stages] == ["autoencoder", "restoration", "memory", "discriminator"]
    assert stages[-1].steps == 2
    assert [o.modules for o in stages[-1].objectives] == [tuple(model.members)]
    assert [stage.name for stage in build(sources=("offset",), features="off").stages()] == ["discriminator"]
    for change in ({"blur": 1.0}, {"distance_weight": 1.0}, {"flips": False}, {"top": 0.5}, {"bank": 16}):
        assert build(**change).stages()[-1].decided_by == stages[-1].decided_by
    assert build(sources=("offset",)).stages()[-1].decided_by != stages[-1].decided_by


def test_the_loss_is_cross_entropy_inside_the_anatomy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(features="off", sources=("offset",), marks=0.0, members=1)
    seen = list[Shifted]()

    def spy(*args: Any, **named: Any) -> Shifted:
        seen.append(shift(*args, **named))
        return seen[0]

    monkeypatch.setattr(module, "shift", spy)
    loss = model._loss(images(), Step(torch.Generator().manual_seed(0)))["loss"]
    image, target, inside = seen[0]
    errors = F.binary_cross_entropy_with_logits(model.members[0](image), target, reduction="none")
    assert float(loss.detach()) == pytest.approx(float(errors[inside > 0].mean().detach()), rel=1e-5)


def test_the_loss_trains_every_member_and_not_the_paper_s_networks() -> None:
    model = build()
    model.eval()
    fill_memory(model)
    model._loss(images(), Step(torch.Generator().manual_seed(0)))["loss"].backward()
    moved = {name for name, p in model.named_parameters() if p.grad is not None and float(p.grad.abs().sum()) > 0}
    assert {name.split(".")[1] for name in moved} == {"0", "1"}
    assert all(name.startswith("members.") for name in moved)


def test_the_restoration_source_has_no_decoder_error() -> None:
    """x^r - x̂ is 0 if the restored latents are the original ones."""
    model = build()
    step = Step(torch.Generator().manual_seed(0))
    x = images()
    dmd: Any = model.dmd
    dmd.eval()
    with torch.no_grad():
        change = dmd.reconstruction_shift(x, step)
        assert change.shape == x.shape
        assert float(change.abs().max()) > 0.0
        dmd._restored = lambda z0, _drawn: (z0, {})
        assert float(dmd.reconstruction_shift(x, step).abs().max()) == 0.0


def test_normalisation_centres_both_witnesses_on_unseen_normals() -> None:
    model = build(sources=("offset",))
    model.eval()
    with torch.no_grad():
        fill_memory(model)
        unseen = images(6, seed=5)
        model.fit_normalisation([(unseen[:4], None), (unseen[4:], None)])
        inside = anatomy(unseen) > 0
        for witness, centre, spread in zip(model._witnesses(unseen), model.centre, model.spread, strict=True):
            assert float(centre) == pytest.approx(float(witness[inside].mean()), abs=1e-4)
            assert float(spread) == pytest.approx(float(witness[inside].std()), rel=1e-3)


def test_the_map_is_the_weighted_mean_of_z_scores_and_the_score_its_highest_pixels() -> None:
    model = build(sources=("offset",), top=0.1, distance_weight=3.0)
    model.eval()
    x = images(1, seed=3)
    with torch.no_grad():
        fill_memory(model)
        model.fit_normalisation([(images(6, seed=5), None)])
        logits, distance = model._witnesses(x)
        found = model.predict(x)
    z, nn = (logits - model.centre[0]) / model.spread[0], (distance - model.centre[1]) / model.spread[1]
    expected = F.softplus((z + 3.0 * nn) / 4.0) * anatomy(x)
    torch.testing.assert_close(found.heatmap, expected[:, 0])
    assert float(found.heatmap[:, :4].max()) == 0.0  # black above the head
    highest = sorted(expected.flatten().tolist(), reverse=True)[: round(0.1 * SIZE * SIZE)]
    assert float(found.score) == pytest.approx(sum(highest) / len(highest), rel=1e-5)
    assert torch.equal(found.score, model.score_of(found.heatmap))


def test_flips_make_the_discriminators_symmetric() -> None:
    model = build(features="off", sources=("offset",))
    model.eval()
    x = images(2)
    with torch.no_grad():
        torch.testing.assert_close(model.predict(x.flip(-1)).heatmap, model.predict(x).heatmap.flip(-1))


def test_pseudo_healthy_images_are_the_paper_s_restorations() -> None:
    model, x = build().eval(), images(2)
    dmd: Any = model.dmd
    with torch.no_grad():
        assert torch.equal(model.pseudo_healthy(x), dmd.pseudo_healthy(x))
        assert torch.equal(build(sources=("offset",)).pseudo_healthy(x), x)


def test_without_the_extra_it_trains_the_discriminators_alone_and_says_so(
    run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(reshift_settings, "find_spec", lambda name: None if "efficientnet" in name else find(name))
    data = write_phantom(tmp_path / "data", train=12, test_normal=2, test_abnormal=2, size=32)
    settings = ["steps=2", "members=1", "widths=[8,8,8,8]", "sources=['offset','swap']"]
    given = [part for text in settings for part in ("--set", f"model.{text}")]
    done = run_cli("train", "--data", data, "--out", tmp_path / "run", "--method", "reshift", "--set", "data.size=32", *given)
    assert done.code == 0
    assert "pip install 'reshift[features]'" in done.err
    config = json.loads((tmp_path / "run" / "bundle" / "config.json").read_text())["config"]
    assert config["model"]["features"] == "off"
    out = tmp_path / "evaluation"
    assert run_cli("evaluate", tmp_path / "run" / "bundle", "--data", data, "--out", out).code == 0
    assert any("reshift[features]" in text for text in json.loads((out / "metrics.json").read_text())["warnings"])


@pytest.mark.parametrize(("settings", "message"), [
    ({"sources": ()}, "at least one source"),
    ({"sources": ("swap", "swap")}, "none twice"),
    ({"smallest": 0.5}, "smallest 0.5 exceeds largest 0.35"),
])  # fmt: skip
def test_inconsistent_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**settings)


def test_with_its_mirror_image_a_change_on_one_side_shows_on_the_other() -> None:
    x = images(1)
    changed = x.clone()
    changed[:, :, 10:14, :4] = 0.9
    far = slice(SIZE - 4, SIZE)  # of the first convolution at least, whose reach is one pixel
    with torch.no_grad():
        for mirror in (False, True):
            model = build(features="off", sources=("offset",), mirror=mirror).eval()
            first: Any = model.members[0]
            before, after = (first.down[0][0](model._with_mirror(image))[..., far] for image in (x, changed))
            assert torch.equal(before, after) == (not mirror)
            assert model.predict(x).heatmap.shape == (1, SIZE, SIZE)


def test_the_feature_network_gets_the_image_at_the_set_side() -> None:
    for side, grid in ((224, 28), (128, 16)):
        model = build(sources=("offset",), side=side)
        assert model._patches(model._feature_maps(images(1))).shape == (1, 152, grid, grid)
    with pytest.raises(ValueError, match="multiple of 32"):
        build(side=100)
