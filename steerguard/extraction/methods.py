"""How a direction is found between the activations of answers with a behavior and of their opposites.

Each takes one block's activations of n pairs, positive and negative [n, hidden_size], and gives v [hidden_size] in
the residual stream's units. With d = positive - negative of a pair:

- `mean_difference`: v = mean(d). "Difference of means", or CAA (Rimsky et al., arXiv 2312.06681), over the tokens
  asked for rather than the last one.
- `pca`: u = the first principal direction of the d, not centered (Zou et al., arXiv 2310.01405, center them, which
  takes away the very difference that all pairs share; repeng's `pca_center` doesn't).
- `logistic`: u = the normal of the plane that a logistic regression on standardized activations puts between the
  two sides, in unstandardized units.

The last two have no length of their own: v = (mean(d) · u) u, so that α = 1 moves an average opposite answer as far
along u as an average answer with the behavior lies, whatever the method, and the sign is the behavior's.
"""

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from steerguard.vectors.vector import FloatArray

Method = Literal["mean_difference", "pca", "logistic"]
METHODS: tuple[Method, ...] = get_args(Method)
CHUNK_PAIRS = 1_024

Direction = npt.NDArray[np.float64]


def find_direction(method: Method, positive: FloatArray, negative: FloatArray, *, seed: int = 0) -> Direction:
    """v [hidden_size] of one block, from activations [pairs, hidden_size] in the same order.

    The mean difference keeps only a running sum in memory; the others hold this block's activations. Raises
    ValueError for an unknown method.
    """
    difference = _mean_difference(positive, negative)
    if method == "mean_difference":
        return difference
    if method == "pca":
        unit = _principal(positive, negative, seed)
    elif method == "logistic":
        unit = _boundary_normal(positive, negative)
    else:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, found {method!r}")
    return unit * (difference @ unit)


def _mean_difference(positive: FloatArray, negative: FloatArray) -> Direction:
    total = np.zeros(positive.shape[1])
    for first in range(0, len(positive), CHUNK_PAIRS):
        rows = slice(first, first + CHUNK_PAIRS)
        total += (positive[rows].astype(np.float64) - negative[rows]).sum(axis=0)
    return total / len(positive)


def _principal(positive: FloatArray, negative: FloatArray, seed: int) -> Direction:
    from sklearn.decomposition import TruncatedSVD

    differences = np.asarray(positive, np.float64) - negative
    if len(differences) == 1 or not differences.any():
        return np.asarray(differences[0] / (np.linalg.norm(differences[0]) or 1.0))
    # Uncentered PCA is the singular value decomposition of the differences themselves.
    found = TruncatedSVD(n_components=1, n_iter=20, random_state=seed).fit(differences).components_[0]
    return np.asarray(found / np.linalg.norm(found))


def _boundary_normal(positive: FloatArray, negative: FloatArray) -> Direction:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    activations = np.concatenate([positive, negative]).astype(np.float64)
    sides = np.repeat([1, 0], [len(positive), len(negative)])
    scaler = StandardScaler().fit(activations)
    fitted = LogisticRegression(max_iter=1_000).fit(scaler.transform(activations), sides)
    normal = fitted.coef_[0] / scaler.scale_
    length = np.linalg.norm(normal)
    return np.asarray(normal / length if length else normal)
