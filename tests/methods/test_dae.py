"""DAE: its network, noise, masked loss and heat-map, and that it finds lesions because of the noise."""

from typing import Any

import numpy as np
import pytest
import torch
from sanity_data import Cases, chests, judge_places, train, training_images, trivial
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from reshift.methods.dae import DAE, DAESettings
from reshift.methods.detector import Step
from reshift.methods.ops.noise import coarse_noise, roll_each
from reshift.nets.dae_unet import DenoisingUNet, StandardisedConv, norm_groups
from reshift.nets.norm import GroupNorm

SIZE = 32


def make(channels: int = 1, **settings: Any) -> DAE:
    torch.manual_seed(0)
    return DAE(DAESettings(**{"widths": (4, 8), **settings}), SIZE, channels).eval()


def step(seed: int = 0) -> Step:
    return Step(torch.Generator().manual_seed(seed))


def images(n: int = 3, channels: int = 1) -> Tensor:
    """Bright noise in a black frame that is wider on the left than on the right."""
    x = torch.full((n, channels, SIZE, SIZE), -1.0)
    x[:, :, 6:26, 8:28] = torch.rand(n, channels, 20, 20, generator=torch.Generator().manual_seed(1)) * 1.5 - 0.5
    return x


def test_the_standardised_kernel_has_mean_0_and_deviation_1_per_output_channel() -> None:
    torch.manual_seed(0)
    conv = StandardisedConv(3, 2)
    assert conv.bias is not None
    bias = conv.bias.tolist()
    x = torch.randn(1, 3, 5, 6)
    padded = np.pad(x[0].numpy(), ((0, 0), (1, 1), (1, 1)), mode="reflect")
    for o in range(2):
        kernel = conv.weight[o].detach().numpy().astype(np.float64)
        kernel = (kernel - kernel.mean()) / (kernel.std(ddof=1) + 1e-5)
        for i in range(5):
            for j in range(6):
                expected = (padded[:, i : i + 3, j : j + 3] * kernel).sum() + bias[o]
                assert float(conv(x)[0, o, i, j].detach()) == pytest.approx(expected, abs=1e-4)


def test_a_constant_added_to_the_input_does_not_change_the_output() -> None:
    net, x = DenoisingUNet(1, (4, 8)), images()
    assert torch.allclose(net(x), net(x - 1.0), atol=1e-4)  # so an offset of -1 in training has no effect


def test_groups_are_the_median_divisor() -> None:
    assert [norm_groups(width) for width in (64, 128, 256, 512)] == [8, 16, 16, 32]
    assert [norm_groups(width) for width in (1, 7, 12, 1024)] == [1, 7, 4, 32]


def test_the_network_has_the_authors_layers_in_the_authors_order() -> None:
    net = DenoisingUNet(1, DAESettings().widths)
    kinds = [type(layer) for layer in net.down[0].children()]
    assert kinds == [StandardisedConv, nn.SiLU, GroupNorm] * 2
    convs = [m for m in net.modules() if isinstance(m, StandardisedConv)]
    assert [(c.in_channels, c.out_channels) for c in convs] == [
        (1, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 512), (512, 512),
        (512, 256), (256, 256), (256, 128), (128, 128), (128, 64), (64, 64),
    ]  # fmt: skip
    ups = [m for m in net.modules() if isinstance(m, nn.ConvTranspose2d)]
    assert [(u.in_channels, u.out_channels, u.kernel_size, u.stride) for u in ups] == [
        (a, b, (2, 2), (2, 2)) for a, b in ((512, 256), (256, 128), (128, 64))
    ]
    assert isinstance(net.head, nn.Conv2d)
    assert net.head.kernel_size == (1, 1)


def test_the_network_pools_by_averages_and_concatenates_with_the_skip() -> None:
    torch.manual_seed(0)
    net, x = DenoisingUNet(1, (4, 8)), torch.randn(2, 1, 8, 8)
    top = net.down[0](x)
    pooled = (top[..., ::2, ::2] + top[..., 1::2, ::2] + top[..., ::2, 1::2] + top[..., 1::2, 1::2]) / 4
    raised = net.up[0](net.down[1](pooled))
    assert torch.allclose(net(x), net.head(net.merge[0](torch.cat([raised, top], 1))), atol=1e-5)


def test_each_sample_is_rolled_by_its_own_shift() -> None:
    x, down, right = torch.randn(4, 2, 5, 7), torch.tensor([0, 1, 4, 2]), torch.tensor([3, 0, 6, 1])
    rolled = roll_each(x, down, right)
    for k in range(4):
        assert torch.equal(rolled[k], torch.roll(x[k], (int(down[k]), int(right[k])), dims=(1, 2)))


@pytest.mark.parametrize(("size", "grid"), [(128, 16), (32, 16), (48, 5)])
def test_noise_is_the_coarse_grid_enlarged_with_aligned_corners_and_rolled(size: int, grid: int) -> None:
    x = torch.zeros(2, 3, size, size)
    noise = coarse_noise(x, grid, 0.4, step())
    points, down, right = (
        (draws := step()).normal(2, 3, grid, grid),
        draws.integers(0, size - 1, 2),
        draws.integers(0, size - 1, 2),
    )
    for b in range(2):
        still = torch.roll(noise[b], (-int(down[b]), -int(right[b])), dims=(1, 2)).double()
        for c, i, j in [(0, 0, 0), (1, size - 1, 0), (2, size // 2, size // 3), (0, 1, size - 2)]:
            y, z = i * (grid - 1) / (size - 1), j * (grid - 1) / (size - 1)
            a, d = min(int(y), grid - 2), min(int(z), grid - 2)
            corner = points[b, c, a : a + 2, d : d + 2].double()
            weight = torch.tensor(
                [[(1 - y + a) * (1 - z + d), (1 - y + a) * (z - d)], [(y - a) * (1 - z + d), (y - a) * (z - d)]]
            )
            assert float(still[c, i, j]) == pytest.approx(0.4 * float((corner * weight).sum()), abs=1e-4)


def test_noise_has_the_stated_scale_at_grid_points_and_reaches_every_shift() -> None:
    draws = step()
    assert float(coarse_noise(torch.zeros(64, 1, 16, 16), 16, 0.4, draws).std()) == pytest.approx(0.4, rel=0.03)
    assert set(step().integers(0, 7, 400).tolist()) == set(range(8))


def spy(model: DAE, monkeypatch: pytest.MonkeyPatch, output: float = 0.25) -> list[Tensor]:
    """Let the network return a constant, and record its inputs."""
    seen: list[Tensor] = []

    def forward(x: Tensor) -> Tensor:
        seen.append(x)
        return torch.full_like(x, output)

    monkeypatch.setattr(model.net, "forward", forward)
    return seen


def test_training_noise_stays_inside_the_foreground_without_an_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make(), images(16)
    seen = spy(model, monkeypatch)
    model.stages()[0].objectives[0].loss(x, step())
    added = seen[0] - x
    inside = (x > -0.98).expand_as(x)
    assert torch.equal(added[~inside], torch.zeros_like(added[~inside]))
    assert (added[inside] != 0).float().mean() > 0.99
    assert abs(float(added[inside].mean())) < 0.05
    assert torch.allclose(added[inside], coarse_noise(x, 16, 0.4, step())[inside], atol=1e-6)


def test_loss_is_the_squared_error_inside_averaged_over_all_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make(channels=3), images(channels=3)
    spy(model, monkeypatch)
    expected = sum((float(v) - 0.25) ** 2 for v in x.flatten() if v > -0.98) / x.numel()
    assert float(model.stages()[0].objectives[0].loss(x, step())["loss"]) == pytest.approx(expected, rel=1e-4)


class NoValues(TorchDispatchMode):
    """Fail if the value of a tensor is read, which a recorded CUDA graph cannot do."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket not in (
            torch.ops.aten._local_scalar_dense,
            torch.ops.aten.nonzero,
            torch.ops.aten.masked_select,
        )
        return func(*args, **(kwargs or {}))


def test_the_loss_trains_every_parameter_and_reads_no_tensor_value() -> None:
    model, x = make(), images()
    with NoValues():
        model.stages()[0].objectives[0].loss(x, step())["loss"].backward()
    assert all(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in model.net.parameters() if p.ndim > 1)
    with pytest.raises(AssertionError), NoValues():
        x.mean().item()  # the mode does fail


def test_prediction_adds_no_noise_and_ignores_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make(channels=3), images(channels=3)
    seen = spy(model, monkeypatch)
    score, heatmap = model.predict(x)
    assert torch.equal(torch.cat(seen), x)
    inside = (x > -0.98).any(1)
    assert torch.equal(heatmap, (x - 0.25).abs().mean(1) * inside)
    assert torch.allclose(score, heatmap.mean((1, 2)))
    squared = make(channels=3, map="squared")
    spy(squared, monkeypatch)
    assert torch.equal(squared.predict(x).heatmap, (x - 0.25).square().mean(1) * inside)
    healthy = model.pseudo_healthy(x)
    assert torch.equal(healthy, torch.where(inside[:, None], torch.full_like(x, 0.25), x))


def test_the_authors_post_processing_is_erosion_by_a_5x5_mean_then_a_5x5_median(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make(postprocess="authors"), images()
    x[0, 0, 12, 12] = -1.0  # 24 of 25 is above 0.95: one dark pixel does not erode its neighbours
    x[1, 0, 12, 12:14] = -1.0  # 23 of 25 is not
    spy(model, monkeypatch)
    heatmap = model.predict(x).heatmap
    inside = F.pad((x[:, 0] > -0.98).double(), (2, 2, 2, 2)).numpy()
    error = np.zeros((3, SIZE, SIZE))
    for k in range(3):
        for i in range(SIZE):
            for j in range(SIZE):
                kept = inside[k, i : i + 5, j : j + 5].mean() > 0.95
                error[k, i, j] = abs(float(x[k, 0, i, j]) - 0.25) * kept
    assert error[0, 12, 12] > 0
    assert error[1, 12, 12] == 0
    for k, i, j in [(0, 12, 12), (0, 8, 10), (1, 12, 12), (1, 14, 14), (2, 20, 17), (2, 3, 3)]:
        assert float(heatmap[k, i, j]) == pytest.approx(np.median(error[k, i - 2 : i + 3, j - 2 : j + 3]), abs=1e-6)


def test_settings_of_prediction_do_not_decide_training() -> None:
    decided = make().stages()[0].decided_by
    assert decided is not None
    assert decided == make(map="squared", postprocess="authors").stages()[0].decided_by
    for change in ({"noise_std": 0.2}, {"noise_grid": 8}, {"widths": (4, 4)}, {"epochs": 1}, {"floor": -2.0}):
        assert decided != make(**change).stages()[0].decided_by


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.size 36 is not a multiple of 8"):
        DAE(DAESettings(), 36, 1)
    with pytest.raises(ValueError, match="at least 64"):
        DAE(DAESettings(widths=(4,) * 6), 32, 1)  # one pixel cannot be reflected
    with pytest.raises(ValueError, match="noise_grid 33 exceeds"):
        DAE(DAESettings(noise_grid=33), 32, 1)


def test_it_finds_lesions_because_of_the_noise() -> None:
    """Pixels of chest phantoms; in the brain, brightness alone finds nearly all. Chance is 0.5."""
    sick, masks = chests(range(300, 330), abnormal=True)
    cases = Cases(torch.cat([sick, sick]), masks)

    def found(noise_std: float) -> tuple[float, float]:
        model = make(widths=(8, 16, 16, 16), noise_grid=8, noise_std=noise_std)
        return judge_places(train(model, training_images(), (80,), lr=1e-2, batch=8), cases)

    (auc, ap), (plain_auc, plain_ap), brightness = found(0.4), found(0.0), trivial(cases)
    assert auc > max(0.68, brightness.pixel_auc + 0.05)
    assert ap > 3 * brightness.pixel_ap
    assert auc > plain_auc + 0.05  # without noise a U-Net copies its input, lesions included
    assert ap > 2 * plain_ap
