"""The autoencoder: the names of its weights, and how the use of its codes is counted. The classifier: no redundant bias."""

import pytest
import torch

from reshift.nets.classifier import Classifier
from reshift.nets.vqvae import VQVAE, code_counts, usage_and_perplexity

KEYS = [  # of an autoencoder with two widths, as bundles hold them
    "codebook",
    "encoder.0.0.weight",
    "encoder.0.1.weight", "encoder.0.1.bias",
    "encoder.0.1.running_mean", "encoder.0.1.running_var", "encoder.0.1.num_batches_tracked",
    "encoder.1.0.weight",
    "encoder.1.1.weight", "encoder.1.1.bias",
    "encoder.1.1.running_mean", "encoder.1.1.running_var", "encoder.1.1.num_batches_tracked",
    "encoder.2.weight", "encoder.2.bias",
    "decoder.0.weight", "decoder.0.bias",
    "decoder.1.0.weight",
    "decoder.1.1.weight", "decoder.1.1.bias",
    "decoder.1.1.running_mean", "decoder.1.1.running_var", "decoder.1.1.num_batches_tracked",
    "decoder.2.weight", "decoder.2.bias",
]  # fmt: skip


def test_a_saved_autoencoder_still_loads() -> None:
    assert list(VQVAE(1, (4, 8), 4, 8).state_dict()) == KEYS


def test_usage_and_perplexity() -> None:
    counts = code_counts(torch.tensor([[0, 0, 1, 1]]), K=4)
    assert counts.tolist() == [2.0, 2.0, 0.0, 0.0]
    usage, perplexity = usage_and_perplexity(counts)
    assert float(usage) == 0.5
    assert float(perplexity) == pytest.approx(2.0, rel=1e-5)


def test_no_convolution_of_the_classifier_has_a_bias_that_batchnorm_would_cancel() -> None:
    names = {name for name, _ in Classifier(1, (4, 8), 16).convs.named_parameters()}
    assert names == {f"{block}.{name}" for block in "01" for name in ("0.weight", "1.weight", "1.bias")}
