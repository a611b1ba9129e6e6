"""The Beta distribution, which order statistics follow: its distribution function and quantiles, for arrays, by numpy alone."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

MAX_TERMS = 2000  # of the continued fraction; it needs about √(a + b)
HALVINGS = 60
TINY = 1e-300

_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])


def beta_cdf(x: ArrayLike, a: ArrayLike, b: ArrayLike) -> Floats:
    """P(Beta(a, b) ≤ x): the regularised incomplete beta function, by its continued fraction (Lentz's method)."""
    x, a, b = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (x, a, b)))
    turn = x > (a + 1.0) / (a + b + 2.0)  # there the fraction of the complement converges faster
    p, q, y = np.where(turn, b, a), np.where(turn, a, b), np.clip(np.where(turn, 1.0 - x, x), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        log_front = p * np.log(y) + q * np.log1p(-y) + _log_gamma(p + q) - _log_gamma(p) - _log_gamma(q)
    part = np.exp(log_front) / p * _fraction(y, p, q)
    return np.asarray(np.where(turn, 1.0 - part, part))


def beta_quantile(share: float, a: ArrayLike, b: ArrayLike) -> Floats:
    """The value that Beta(a, b) does not exceed with probability ``share``, by bisection."""
    a, b = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
    low, high = np.zeros(a.shape), np.ones(a.shape)
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        below = beta_cdf(middle, a, b) < share
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2.0


def _fraction(x: Floats, a: Floats, b: Floats) -> Floats:
    """The continued fraction of the incomplete beta function, until it no longer changes."""
    c, d = np.ones(x.shape), 1.0 / _not_zero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, MAX_TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d, c = 1.0 / _not_zero(1.0 + term * d), _not_zero(1.0 + term / c)
            value = value * d * c
        if np.all(np.abs(d * c - 1.0) < 1e-13):
            break
    return value


def _not_zero(value: Floats) -> Floats:
    return np.where(np.abs(value) < TINY, TINY, value)
