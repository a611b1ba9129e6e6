"""DMD's restored image: the average of what was masked, and the same bits alone."""

from typing import Any

import pytest
import torch

from reshift.methods.dmd.method import DMD
from reshift.methods.dmd.settings import DMDSettings


def dmd(**settings: Any) -> DMD:
    torch.manual_seed(0)
    small = {"widths": (8, 16), "d_z": 8, "codes": 16, "unet_widths": (16, 32), "classifier_widths": (8, 8, 8)}
    return DMD(DMDSettings(**small, **settings), 32, settings.get("channels", 1)).eval().requires_grad_(False)


@pytest.mark.parametrize("variant", [{}, {"masking": False}, {"diffusion": False}, {"inference_rows": 2}], ids=str)
def test_pseudo_healthy_averages_what_was_masked(variant: dict[str, Any]) -> None:
    model, x = dmd(**variant), torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(1)) * 2 - 1
    found = model.pseudo_healthy(x)
    assert found.shape == x.shape
    masks, noise = model.inference_masks()
    total, weight = torch.zeros_like(x), torch.zeros(32, 32)
    for k in range(len(masks)):
        up = masks[k, 0].repeat_interleave(4, 0).repeat_interleave(4, 1)
        for n in range(len(x)):
            z0_hat = model.restore(model.latents(x[n : n + 1]), masks[k : k + 1], noise[k : k + 1])[0]
            total[n] += up * model.decode(z0_hat)[0]  # the whole image, where the method decodes a window
        weight += up
    torch.testing.assert_close(found, total / (weight + model.settings.delta), rtol=1e-4, atol=1e-5)
    assert torch.equal(found[:1], model.pseudo_healthy(x[:1]))  # the same bits alone
