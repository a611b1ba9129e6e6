"""Exposure: images are judged brighter than normals were learned, where the normals say that brightness is what tells."""

import pytest
import torch
from small_reshift import filled, images

from reshift.config import Config, merge, parse
from reshift.errors import UserError
from reshift.methods.reshift.memory import Memory
from reshift.methods.reshift.photometry import expose
from reshift.methods.reshift.settings import ReshiftSettings


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


def test_a_wrong_value_is_refused() -> None:
    for wrong in (0.0, -1.0, 9.0, "much"):
        with pytest.raises(UserError, match="exposure"):
            parse(ReshiftSettings, {"exposure": wrong}, "model")
    assert parse(Config, merge({"model": {"exposure": 1.1}})).model["exposure"] == 1.1
