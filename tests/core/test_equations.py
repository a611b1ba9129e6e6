"""One test per equation of the paper, each against a slow loop that follows the paper's own indices."""

import math

import pytest
import torch
from torch import Tensor, nn

from reshift.core.anomaly import overlap_average, residual_map, upsample_mask
from reshift.core.diffusion import clean_estimate, masked_forward
from reshift.core.losses import classification_loss, diffusion_loss, stage2_loss, vq_loss
from reshift.core.masks import grid_masks, random_square, square_mask, square_side, square_start
from reshift.core.quantize import lookup, nearest_code, straight_through
from reshift.core.schedule import at, linear_alpha_bar
from reshift.nets.vqvae import VQVAE

B, D_Z, H, W, K = 3, 5, 4, 6, 7


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_eq1_encoder_gives_the_latent_grid() -> None:
    z_e = VQVAE(channels=1).encoder(torch.randn(2, 1, 128, 128))
    assert z_e.shape == (2, 64, 16, 16)  # h = w = 16, d_z = 64


def test_eq2_nearest_code() -> None:
    z_e, codebook = torch.randn(B, D_Z, H, W), torch.randn(K, D_Z)
    k = nearest_code(z_e, codebook)
    z_q = lookup(k, codebook)
    for b in range(B):
        for i in range(H):
            for j in range(W):
                distances = [sum(float(z_e[b, d, i, j] - codebook[c, d]) ** 2 for d in range(D_Z)) for c in range(K)]
                best = min(range(K), key=distances.__getitem__)
                assert int(k[b, i, j]) == best
                assert torch.equal(z_q[b, :, i, j], codebook[best])


def test_eq3_straight_through_has_the_value_of_zq_and_the_gradient_of_ze() -> None:
    z_e, z_q = torch.randn(B, D_Z, H, W, requires_grad=True), torch.randn(B, D_Z, H, W, requires_grad=True)
    out = straight_through(z_e, z_q)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    assert torch.allclose(out, z_q, atol=1e-6)
    assert z_e.grad is not None
    assert torch.equal(z_e.grad, weight)
    assert z_q.grad is None


def test_eq4_vq_loss_has_all_three_terms() -> None:
    x, x_hat = torch.randn(B, 1, 8, 8), torch.randn(B, 1, 8, 8)
    z_e, z_q = torch.randn(B, D_Z, H, W), torch.randn(B, D_Z, H, W)
    expected = 0.0
    for b in range(B):
        reconstruction = sum(float(v) ** 2 for v in (x - x_hat)[b].flatten())
        latent = sum(float(v) ** 2 for v in (z_e - z_q)[b].flatten())
        expected += (reconstruction + latent + 0.25 * latent) / B
    assert float(vq_loss(x, x_hat, z_e, z_q, beta_c=0.25)) == pytest.approx(expected, rel=1e-5)


def test_eq4_each_term_moves_only_what_it_may() -> None:
    x = torch.randn(B, 1, 8, 8)
    leaves = [torch.randn(s, requires_grad=True) for s in ((B, 1, 8, 8), (B, D_Z, H, W), (B, D_Z, H, W))]
    x_hat, z_e, z_q = leaves
    vq_loss(x, x_hat, z_e, z_q, beta_c=0.25).backward()
    assert all(leaf.grad is not None for leaf in leaves)
    for name, grad, expected in (
        ("decoder output", x_hat.grad, 2 * (x_hat - x) / B),
        ("commitment reaches the encoder", z_e.grad, 0.25 * 2 * (z_e - z_q) / B),
        ("codebook term reaches the codes", z_q.grad, 2 * (z_q - z_e) / B),
    ):
        assert grad is not None, name
        assert torch.allclose(grad, expected.detach(), atol=1e-6), name


def test_schedule_is_linear_float64_and_one_based() -> None:
    alpha_bar = linear_alpha_bar()
    assert alpha_bar.dtype == torch.float64
    assert len(alpha_bar) == 1001
    product = 1.0
    assert float(alpha_bar[0]) == 1.0
    for t in range(1, 1001):
        beta = 1e-4 + (0.02 - 1e-4) * (t - 1) / 999
        product *= 1.0 - beta
        assert float(alpha_bar[t]) == pytest.approx(product, rel=1e-12)
    assert float(alpha_bar[1000]) == pytest.approx(4.0e-5, rel=0.02)
    assert float(((1 - alpha_bar[1000]) / alpha_bar[1000]).sqrt()) == pytest.approx(157, abs=1)  # by which Eq. 7 amplifies errors
    assert at(alpha_bar, torch.tensor([1, 500])).shape == (2, 1, 1, 1)
    with pytest.raises(ValueError, match="T_d"):
        linear_alpha_bar(0)


def _mask_and_noise() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    z0, eps = torch.randn(B, D_Z, H, W), torch.randn(B, D_Z, H, W)
    M = square_mask(torch.tensor([1, 2, 4]), torch.tensor([0, 1, 0]), torch.tensor([5, 2, 1]), H, W)
    t = torch.tensor([1, 500, 1000])
    return z0, eps, M, t, at(linear_alpha_bar(), t)


def test_eq5_masked_forward_noises_inside_the_mask_only() -> None:
    z0, eps, M, t, a_bar = _mask_and_noise()
    z_t = masked_forward(z0, eps, M, a_bar)
    alpha_bar = linear_alpha_bar()
    for b in range(B):
        a = float(alpha_bar[t[b]])
        for c in range(D_Z):
            for i in range(H):
                for j in range(W):
                    noised = math.sqrt(a) * float(z0[b, c, i, j]) + math.sqrt(1 - a) * float(eps[b, c, i, j])
                    expected = noised if M[b, 0, i, j] == 1 else float(z0[b, c, i, j])
                    assert float(z_t[b, c, i, j]) == pytest.approx(expected, abs=1e-6)


def test_eq6_diffusion_loss_is_normalised_per_sample() -> None:
    _, eps, M, _, _ = _mask_and_noise()
    eps_hat = torch.randn_like(eps)
    expected = 0.0
    for b in range(B):
        total, inside = 0.0, 0
        for i in range(H):
            for j in range(W):
                if M[b, 0, i, j] == 1:
                    inside += 1
                    total += sum(float(eps[b, c, i, j] - eps_hat[b, c, i, j]) ** 2 for c in range(D_Z))
        expected += total / (D_Z * inside) / B
    assert float(diffusion_loss(eps, eps_hat, M)) == pytest.approx(expected, rel=1e-5)


def test_eq6_ignores_what_lies_outside_the_mask() -> None:
    _, eps, M, _, _ = _mask_and_noise()
    eps_hat = torch.randn_like(eps, requires_grad=True)
    diffusion_loss(eps, eps_hat, M).backward()
    assert eps_hat.grad is not None
    assert bool((eps_hat.grad * (1 - M) == 0).all())
    assert bool((eps_hat.grad * M != 0).any())


def test_eq7_inverts_eq5_given_the_true_noise() -> None:
    z0, eps, M, _, a_bar = _mask_and_noise()
    z0, eps = z0.double(), eps.double()  # at t = T errors grow 157-fold, so exactness is shown in float64
    z_t = masked_forward(z0, eps, M.double(), a_bar)
    assert torch.allclose(clean_estimate(z_t, eps, z0, M.double(), a_bar), z0, atol=1e-12)


def test_eq7_copies_the_context_and_estimates_inside() -> None:
    z0, eps, M, t, a_bar = _mask_and_noise()
    z_t, eps_hat = masked_forward(z0, eps, M, a_bar), torch.randn_like(eps)
    z0_hat = clean_estimate(z_t, eps_hat, z0, M, a_bar)
    alpha_bar = linear_alpha_bar()
    for b in range(B):
        a = float(alpha_bar[t[b]])
        for i in range(H):
            for j in range(W):
                for c in range(D_Z):
                    inside = (float(z_t[b, c, i, j]) - math.sqrt(1 - a) * float(eps_hat[b, c, i, j])) / math.sqrt(a)
                    expected = inside if M[b, 0, i, j] == 1 else float(z0[b, c, i, j])
                    assert float(z0_hat[b, c, i, j]) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_eq8_and_eq12_decoder_gives_an_image() -> None:
    x_r = VQVAE(channels=1).decode(torch.randn(2, 64, 16, 16))
    assert x_r.shape == (2, 1, 128, 128)
    assert float(x_r.detach().abs().max()) <= 1.0


def test_eq9_classification_loss() -> None:
    logits, logits_r = torch.randn(B, 2), torch.randn(B, 2)
    f = [math.exp(float(z[1])) / (math.exp(float(z[0])) + math.exp(float(z[1]))) for z in logits]
    f_r = [math.exp(float(z[1])) / (math.exp(float(z[0])) + math.exp(float(z[1]))) for z in logits_r]
    expected = -sum(math.log(1 - f[i]) + math.log(f_r[i]) for i in range(B)) / (2 * B)
    assert float(classification_loss(logits, logits_r)) == pytest.approx(expected, rel=1e-5)


def test_eq9_stays_finite_when_the_classifier_is_certain_and_wrong() -> None:
    certain = torch.tensor([[-500.0, 500.0]])
    assert math.isfinite(float(classification_loss(certain, -certain)))


def test_eq10_stage2_loss() -> None:
    assert float(stage2_loss(torch.tensor(0.7), torch.tensor(0.4), 0.1)) == pytest.approx(0.7 + 0.1 * 0.4)


def test_eq13_residual_is_averaged_over_channels() -> None:
    x, x_r = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    R = residual_map(x, x_r)
    for k in range(2):
        for i in range(4):
            for j in range(5):
                expected = sum(abs(float(x[k, c, i, j] - x_r[k, c, i, j])) for c in range(3)) / 3
                assert float(R[k, i, j]) == pytest.approx(expected, abs=1e-6)


def test_eq14_overlap_average() -> None:
    masks = grid_masks(4, 4, side=2, stride=1)  # K_M = 9
    up, R, delta = upsample_mask(masks, 8, 8), torch.rand(9, 8, 8), 1e-6
    A = overlap_average((up * R).sum(0), up.sum(0), delta)
    for i in range(8):
        for j in range(8):
            covering = [k for k in range(9) if masks[k, 0, i // 2, j // 2] == 1]  # nearest-neighbour upsampling by 2
            assert covering
            expected = sum(float(R[k, i, j]) for k in covering) / (len(covering) + delta)
            assert float(A[i, j]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("rho", [1e-9, 0.004, 0.02, 0.0625, 0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize(("h", "w"), [(16, 16), (16, 8)])
def test_eq_a1_side_follows_the_min_max_round_rule(rho: float, h: int, w: int) -> None:
    expected = min(h, w, max(1, round(math.sqrt(rho * h * w))))
    assert square_side(torch.tensor([rho], dtype=torch.float64), h, w).tolist() == [expected]


def test_eq_a1_mask_is_the_square_at_a_b() -> None:
    side, a, b = torch.tensor([1, 3, 4]), torch.tensor([3, 0, 0]), torch.tensor([5, 2, 1])
    M = square_mask(side, a, b, H, W)
    assert M.shape == (3, 1, H, W)
    for n in range(3):
        for i in range(H):
            for j in range(W):
                inside = a[n] <= i < a[n] + side[n] and b[n] <= j < b[n] + side[n]
                assert float(M[n, 0, i, j]) == float(inside)


def test_eq_a1_starts_are_uniform_over_every_valid_position() -> None:
    u = torch.rand(40_000)
    starts = square_start(u, torch.full_like(u, 4, dtype=torch.long), 16)
    counts = torch.bincount(starts)
    assert len(counts) == 13  # {0, …, 16 - 4}
    assert float((counts / 40_000 - 1 / 13).abs().max()) < 0.005
    edge = torch.tensor([1.0 - 2**-24])  # the largest float32 below one must not fall off the end
    assert int(square_start(edge, torch.tensor([4]), 16)) == 12


def test_eq_a1_from_three_uniform_numbers() -> None:
    u, n = torch.rand(64, 3), 16
    M = random_square(u, 0.1, 0.4, n)
    for (area, row, column), mask in zip(u.tolist(), M[:, 0], strict=True):
        side = min(n, max(1, round(math.sqrt((0.1 + 0.3 * area) * n * n))))
        a, b = (min(n - side, int(place * (n - side + 1))) for place in (row, column))
        expected = torch.zeros(n, n)
        expected[a : a + side, b : b + side] = 1.0
        assert torch.equal(mask, expected)


def test_vqvae_gradient_reaches_encoder_codebook_and_decoder() -> None:
    net = VQVAE(widths=(4, 8), d_z=4, K=8)
    x = torch.randn(2, 1, 16, 16)
    q = net.encode(x)
    vq_loss(x, net.decode(q.z_st), q.z_e, q.z_q, 0.25).backward()
    parts: dict[str, list[nn.Parameter]] = {
        "encoder": list(net.encoder.parameters()),
        "decoder": list(net.decoder.parameters()),
        "codebook": [net.codebook],
    }
    for name, parameters in parts.items():
        assert any(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in parameters), name
