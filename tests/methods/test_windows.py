"""Windows by tables of indices: the bits of slices taken and added mask by mask."""

from typing import Any

import pytest
import torch
from test_fast_inference import exact, images, make
from torch import Tensor

from reshift.core.masks import grid_corners, grid_masks
from reshift.methods.dmd import method as module
from reshift.methods.dmd.method import DMD
from reshift.methods.dmd.settings import DMDSettings
from reshift.methods.dmd.windows import Windows

GRIDS = {  # length, side, stride, margin, factor
    "the paper's": (16, 4, 2, 1, 8),
    "odd": (7, 3, 2, 1, 2),
    "last masks moved in": (9, 4, 3, 2, 3),
    "single latents": (5, 1, 1, 1, 1),
    "much overlap": (7, 5, 1, 0, 2),
    "windows as large as the grid": (6, 4, 1, 3, 2),
    "one mask over everything": (8, 8, 8, 1, 4),
}
PARTS = {"all": slice(0, 1000), "first": slice(0, 1), "some": slice(2, 7), "last": slice(-2, None)}
CASES = [(name, part) for name in GRIDS for part in PARTS if (name, part) != ("one mask over everything", "some")]


def grid(name: str, part: str = "all") -> tuple[Windows, list[tuple[int, int]]]:
    """Windows, and the first latents of each, along both axes."""
    length, side, stride, margin, factor = GRIDS[name]
    windows = Windows(grid_corners(length, length, side, stride), side, margin, length, factor).some(PARTS[part])
    size = min(side + 2 * margin, length)
    first = {a: min(max(a - margin, 0), length - size) for a in range(length)}
    return windows, [(first[a], first[b]) for a, b in windows.corners]


def cut(x: Tensor, corner: tuple[int, int], side: int, factor: int = 1) -> Tensor:
    (a, b), n = corner, side * factor
    return x[..., a * factor : a * factor + n, b * factor : b * factor + n]


def last(z: Tensor) -> Tensor:
    """Put the channels of ``(B, k, C, h, w)`` last in memory."""
    return z.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


@pytest.mark.parametrize(("name", "part"), CASES)
def test_windows_are_slices(name: str, part: str) -> None:
    windows, starts = grid(name, part)
    k, h, f = len(starts), windows.length, windows.factor
    z, x = torch.randn(2, k, 5, h, h), torch.randn(2, 3, h * f, h * f)
    own = torch.stack([cut(z[:, i], start, windows.size) for i, start in enumerate(starts)], 1)
    shared = torch.stack([cut(z[:, 0], start, windows.size) for start in starts], 1)
    for layout in (torch.Tensor.contiguous, last):
        assert torch.equal(windows.latents(layout(z)), own)
        assert torch.equal(windows.latents(layout(z[:, :1])), shared)
    assert windows.latents(last(z)).flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(windows.pixels(x), torch.stack([cut(x, start, windows.size, f) for start in starts], 1))


@pytest.mark.parametrize(("name", "part"), CASES)
def test_sums_have_the_bits_of_adding_mask_by_mask(name: str, part: str) -> None:
    windows, starts = grid(name, part)
    k, f, side, image = len(starts), windows.factor, windows.size * windows.factor, windows.length * windows.factor
    for channels in ((), (3,)):
        values, total = torch.randn(2, k, *channels, side, side), torch.randn(2, *channels, image, image)
        expected = total.clone()
        for i, (corner, start) in enumerate(zip(windows.corners, starts, strict=True)):
            inside = (corner[0] - start[0], corner[1] - start[1])
            cut(expected, corner, windows.side, f).add_(cut(values[:, i], inside, windows.side, f))
        windows.add(total, values)
        assert torch.equal(total, expected)


@pytest.mark.parametrize("name", GRIDS)
def test_masks_and_how_many_of_them_cover_a_pixel(name: str) -> None:
    length, side, stride, _, f = GRIDS[name]
    windows, _ = grid(name)
    masks = grid_masks(length, length, side, stride)
    assert torch.equal(windows.masks, masks)
    assert torch.equal(windows.coverage, masks.sum(0).repeat_interleave(f, 1).repeat_interleave(f, 2))


# ---- what DMD keeps of them ------------------------------------------------------------------------------------------------


def test_masks_noise_and_tables_are_made_once_and_are_no_weights() -> None:
    model, before = make(32, 1, inference_rows=4), set(make(32, 1).state_dict())
    model.predict(images(1, 1, 32))
    (windows, noise), parts = model._plan(), [model._plan()[0].some(slice(k, k + 4)) for k in (0, 4, 8)]
    model.predict(images(1, 1, 32))
    assert model._plan()[0] is windows
    assert model._plan()[1] is noise
    assert all(windows.some(slice(4 * i, 4 * i + 4)) is part for i, part in enumerate(parts))
    assert len(parts[2].corners) == 1  # of nine
    assert set(model.state_dict()) == before


def test_what_is_kept_follows_the_settings_and_the_device() -> None:
    model = make(32, 1)
    masks, noise = model.inference_masks()
    model.settings = model.settings.model_copy(update={"inference_seed": 1, "mask_stride": 4})
    assert len(model.inference_masks()[0]) < len(masks)
    assert not torch.equal(model.inference_masks()[1], noise[:4])
    model.to("meta")  # stands for a GPU
    assert {kept.device.type for kept in (*model.inference_masks(), model._plan()[0].coverage)} == {"meta"}


def test_what_inference_mode_has_made_serves_where_gradients_are_taken() -> None:
    model, x = make(32, 1), images(1, 1, 32)
    with torch.inference_mode():
        heatmap = model.anomaly_map(x)
    model.denoiser.requires_grad_(True)
    again = model.anomaly_map(x)
    again.sum().backward()
    assert torch.equal(heatmap, again)
    assert any(bool(p.grad.any()) for p in model.denoiser.parameters() if p.grad is not None)


# ---- channels last, as on a GPU ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"inference_rows": 7}, {"masking": False}], ids=str)
def test_in_channels_last_nothing_is_laid_out_anew(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make(32, 3, **settings), images(2, 3, 32)
    expected = model.anomaly_map(x), model.pseudo_healthy(x)
    monkeypatch.setattr(module, "_layout", lambda _device: torch.channels_last)
    model._planned = None
    seen = list[bool]()

    def look(_module: object, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))

    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.denoiser.register_forward_pre_hook(look)
    model.vqvae.decoder.register_forward_pre_hook(look)
    found = model.anomaly_map(x), model.pseudo_healthy(x)
    assert seen
    assert all(seen)
    assert all(torch.allclose(a, b, rtol=0.0, atol=1e-5) for a, b in zip(found, expected, strict=True))


def test_channels_last_has_the_same_bits_where_sums_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = exact(make(32, 1, diffusion=False)), images(2, 1, 32)
    expected = model.anomaly_map(x)
    monkeypatch.setattr(module, "_layout", lambda _device: torch.channels_last)
    assert torch.equal(model.anomaly_map(x), expected)


def test_restorations_in_windows_are_those_of_the_whole_grid() -> None:
    for diffusion in (True, False):
        model = make(32, 1, diffusion=diffusion)
        (windows, noise), z0 = model._plan(), torch.randn(2, 8, 8, 8)
        whole = model.restore(z0, windows.masks, noise)
        assert torch.equal(model.restore(z0, windows.masks, noise, windows), windows.latents(whole))


def test_without_masking_one_mask_covers_all() -> None:
    model = DMD(DMDSettings(masking=False), 64, 1)
    windows, noise = model._plan()
    assert torch.equal(windows.masks, torch.ones(1, 1, 8, 8))
    assert torch.equal(windows.coverage, torch.ones(1, 64, 64))
    assert noise.shape == (1, 64, 8, 8)
