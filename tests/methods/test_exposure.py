"""Exposure: images are judged brighter than normals were learned, where the normals say that brightness is what tells."""

import numpy as np
import pytest
import torch
from small_reshift import build, filled, images

from reshift.config import Config, merge, parse
from reshift.errors import UserError
from reshift.methods.detector import Normals
from reshift.methods.reshift.memory import Memory
from reshift.methods.reshift.photometry import expose
from reshift.methods.reshift.settings import ReshiftSettings
from reshift.training.normals import tissue_spread


def test_grey_values_are_multiplied_above_black_and_never_cut_off() -> None:
    x = torch.linspace(-1.0, 1.0, 201).view(1, 1, 1, -1)
    unit, brighter = (x + 1.0) / 2.0, (expose(x, 1.25) + 1.0) / 2.0
    low = unit * 1.25 < 0.85
    torch.testing.assert_close(brighter[low], unit[low] * 1.25)
    assert (brighter.diff() > 0).all()
    assert float(brighter.max()) < 1.0
    torch.testing.assert_close(expose(x, 0.8)[unit < 1.0], (2.0 * 0.8 * unit - 1.0)[unit < 1.0])


def test_images_are_judged_at_it_and_normals_are_learned_without_it() -> None:
    x, changed, plain = images(3, seed=4), filled(exposure=1.25), filled(exposure=1.0)
    with torch.no_grad():
        torch.testing.assert_close(changed._see(x).x, expose(x, 1.25))
        torch.testing.assert_close(plain._see(x).x, x)
        assert not torch.equal(changed.predict(x).heatmap, plain.predict(x).heatmap)
    first, second = (next(w for w in model.witnesses if isinstance(w, Memory)).bank for model in (changed, plain))
    assert torch.equal(first, second)
    assert [s.decided_by for s in changed.stages()] == [s.decided_by for s in plain.stages()]


@pytest.mark.parametrize(("middle", "bright_side", "wish", "expected"), [
    (0.2, 0.5, "auto", {"exposure": 1.25}),
    (0.2, 1.5, "auto", {"exposure": 1.0}),  # bright pixels are as usual as dark ones
    (0.6, 0.5, "auto", {"exposure": 1.0}),  # tissue of many greys
    (0.2, 0.5, 0.8, {}),
])  # fmt: skip
def test_the_normals_decide_it(middle: float, bright_side: float, wish: object, expected: dict[str, float]) -> None:
    model = build(exposure=wish, overall="off", symmetry="off")
    assert model.choose_settings(Normals(1.0, 0.0, middle, bright_side)) == expected


def test_tissue_is_described_by_its_quartiles_and_its_two_sides() -> None:
    image = np.full((32, 32), -1.0, np.float32)
    image[8:24, 8:24] = np.linspace(0.0, 1.0, 256, dtype=np.float32).reshape(16, 16)  # of [0, 1]: 0.5 to 1
    middle, bright_side = tissue_spread([image, image])
    assert middle == pytest.approx(0.25 / 0.75, rel=0.01)
    assert bright_side == pytest.approx(1.0, rel=0.01)
    assert tissue_spread([np.full((32, 32), -1.0, np.float32)]) == (np.inf, np.inf)


def test_a_wrong_value_is_refused() -> None:
    for wrong in (0.0, -1.0, 9.0, "much"):
        with pytest.raises(UserError, match="exposure"):
            parse(ReshiftSettings, {"exposure": wrong}, "model")
    assert parse(Config, merge({"model": {"exposure": 1.1}})).model["exposure"] == 1.1
