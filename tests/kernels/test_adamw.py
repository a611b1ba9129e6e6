"""AdamW by our own kernels, interpreted: torch's own steps, whatever the gradients are, and torch's own state."""

from itertools import product
from pathlib import Path

import pytest
import torch
from interpreted import interpret
from torch import Tensor, nn

from reshift.config import TrainConfig
from reshift.kernels.bf16_weights import Bf16Weights
from reshift.methods.detector import Objective, Step
from reshift.training.checkpoint import Position, load_checkpoint, restore_model, restore_optimiser, save_checkpoint
from reshift.training.step import Trained, adamw, make_optimisers, one_step


class Net(nn.Module):
    """Convolutions in channels-last order, norms that stay whole, a weight larger than a block, one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(3, 20, 3, padding=1), nn.GroupNorm(2, 20), nn.Linear(20, 130)
        self.last, self.idle = nn.Linear(130, 2), nn.Linear(2, 2)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.out(self.norm(self.conv(x)).relu().mean((2, 3))).tanh())
        return y


def made(objective: Objective, config: TrainConfig, bf16: Bf16Weights | None, *, fused: bool) -> Trained:
    optimiser = adamw(objective, config, gpu=False)
    for group in optimiser.param_groups:
        group["lr"] = torch.tensor(group["lr"])  # as on a GPU
    if bf16:
        bf16.updated_by_optimiser = fused
    if not fused:
        return Trained(objective, optimiser, bf16)
    from reshift.kernels.adamw import FusedAdamW  # needs Triton

    return Trained(objective, optimiser, bf16, FusedAdamW(optimiser, bf16))


def steps(net: Net, config: TrainConfig, betas: tuple[float, float], count: int, *, fused: bool, half: bool) -> list[float]:
    """Train a little; the norms of the gradients."""

    def loss(x: Tensor, _step: Step) -> dict[str, Tensor]:
        return {"loss": (net(x).float() - x.mean((1, 2, 3))[:, None]).square().mean()}

    bf16 = Bf16Weights(net) if half else None
    each = made(Objective((net,), loss, betas=betas), config, bf16, fused=fused)
    step, norms = Step(torch.Generator()), []
    for i in range(count):
        x = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(i))
        logs = one_step([each], x, step, config)
        norms.append(float(logs.get("gradient", torch.zeros(()))))
    moments = each.optimiser.state[net.out.weight]
    assert float(moments["step"]) == count
    assert all(p.grad is None for p in net.parameters()) or not fused
    if fused and bf16:  # the interpreter truncates where a GPU rounds
        pairs = zip(bf16.copies, bf16.weights, strict=True)
        assert all(torch.allclose(copy.float(), p, rtol=2**-7, atol=0.0) for copy, p in pairs)
    return norms


def check(clip: float, half: bool, betas: tuple[float, float]) -> None:
    """Ours and torch's, from the same start."""
    config = TrainConfig(clip=clip, amp="bf16" if half else "off", lr=3e-3, weight_decay=0.05)
    nets = []
    for fused in (True, False):
        torch.manual_seed(0)
        net = Net()
        norms = steps(net, config, betas, 1 if half else 4, fused=fused, half=half)  # see above: copies differ then
        nets.append((net, norms))
    (ours, our_norms), (theirs, their_norms) = nets
    torch.testing.assert_close(torch.tensor(our_norms), torch.tensor(their_norms), rtol=1e-5, atol=1e-7)
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=2e-6), (name, clip, half, betas, float((a - b).abs().max()))


def every_kind() -> None:
    for clip, half, betas in product((0.0, 0.01, 100.0), (False, True), ((0.9, 0.999), (0.0, 0.9))):
        check(clip, half, betas)


def unusual_gradients() -> None:
    """One that lies askew, one in another order, one that is missing: each weight moves as torch moves it."""
    torch.manual_seed(0)
    config = TrainConfig(clip=0.0, lr=1e-2)
    results = []
    askew, turned = torch.randn(60)[3:23], torch.randn(3, 3, 3, 20).permute(3, 2, 0, 1)
    assert askew.data_ptr() % 16
    for fused in (True, False):
        torch.manual_seed(1)
        net = Net()
        each = made(Objective((net,), lambda _x, _s: {}), config, None, fused=fused)
        for _ in range(2):
            net.conv.bias.grad, net.conv.weight.grad = askew.clone() if not fused else askew, turned  # type: ignore[union-attr]
            if each.fused:
                each.fused.step(0.0)
            else:
                each.optimiser.step()
        results.append(net)
    for a, b in zip(results[0].parameters(), results[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    assert float(each.optimiser.state[net.conv.weight]["step"]) == 2.0


def rivals() -> None:
    """Two objectives whose losses go through each other's weights, as in a GAN: neither keeps what the other left behind."""
    ends = []
    for fused in (True, False):
        torch.manual_seed(0)
        net, judge, start = nn.Linear(4, 4), nn.Linear(4, 1), torch.randn(6, 4)
        both = nn.ModuleList([net, judge])
        config, bf16 = TrainConfig(clip=0.0, amp="bf16", lr=1e-2), Bf16Weights(both)

        def fake(x: Tensor, _step: Step, net: nn.Module = net, judge: nn.Module = judge) -> dict[str, Tensor]:
            return {"loss": -judge(net(x)).float().mean()}

        def real(x: Tensor, _step: Step, net: nn.Module = net, judge: nn.Module = judge) -> dict[str, Tensor]:
            return {"loss": (judge(net(x)) - judge(x)).float().mean() + judge(x).float().square().mean()}

        each = [
            made(Objective((net,), fake), config, bf16, fused=fused),
            made(Objective((judge,), real), config, bf16, fused=fused),
        ]
        one_step(each, start, Step(torch.Generator()), config)
        ends.append([p.detach().clone() for p in both.parameters()])
        assert all(copy.grad is None for copy in bf16.copies) or not fused
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def late_steps() -> None:
    """The correction of the moments' start, over all step numbers, against double precision."""
    from reshift.kernels.adamw import BLOCK, _step

    for t, beta in product((1, 2, 7, 49, 51, 500, 50_000), (0.9, 0.999)):
        w, m, v, g = (torch.full((1,), value) for value in (0.0, 0.0, 0.0, 1.0))
        step, one = torch.tensor(float(t)), torch.ones(())
        row = [torch.tensor([tensor.data_ptr()]) for tensor in (w, m, v)]
        zero, size = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
        log = float(torch.tensor(beta, dtype=torch.float64).log())
        _step[(1,)](
            zero, zero, size, *row, zero, torch.tensor([step.data_ptr()]), torch.tensor([g.data_ptr()]), one, one, 0.0,
            beta, beta, log, log, 0.0, BLOCK=BLOCK,
        )  # fmt: skip
        # m = 1 - β and v = 1 - β, so that the step is √(1 - β)·√(1 - β^t) / (1 - β^t)
        expected = -((1.0 - beta) ** 0.5) / (1.0 - beta**t) ** 0.5
        assert abs(float(w) / expected - 1.0) < 3e-5 * (1 if beta > 0.99 else 0.1), (t, beta, float(w), expected)


def compare() -> None:
    every_kind()
    unusual_gradients()
    rivals()
    late_steps()


def test_fused_steps_are_those_of_torch() -> None:
    interpret("test_adamw", "compare")


def test_on_the_cpu_torch_steps() -> None:
    net = Net()
    (each,) = make_optimisers([Objective((net,), lambda _x, _s: {})], net, TrainConfig(amp="bf16"), torch.device("cpu"))
    assert each.fused is None
    assert each.bf16 is not None
    assert not each.bf16.updated_by_optimiser


@pytest.mark.parametrize("fresh", [True, False])
def test_a_checkpoint_puts_moments_back_in_the_weights_order(tmp_path: Path, fresh: bool) -> None:
    """In the file all is row by row; a kernel that goes through memory would take the wrong moment for a weight."""
    net = Net()
    optimiser = adamw(Objective((net,), lambda _x, _s: {}), TrainConfig(), gpu=False)
    net(torch.randn(2, 3, 4, 4)).sum().backward()
    optimiser.step()
    before = optimiser.state[net.conv.weight]["exp_avg"].clone()
    save_checkpoint(tmp_path / "c", net, [optimiser], Position(0, 1))
    tensors, _ = load_checkpoint(tmp_path / "c")
    if fresh:
        net = Net()
        optimiser = adamw(Objective((net,), lambda _x, _s: {}), TrainConfig(), gpu=False)
    restore_model(net, tensors)
    restore_optimiser(optimiser, 0, tensors)
    after = optimiser.state[net.conv.weight]["exp_avg"]
    assert after.stride() == net.conv.weight.stride() == before.stride()
    assert not after.is_contiguous()
    assert torch.equal(after, before)
