"""Temperature, top-k and top-p: their allowed values, and the weights by which a token is sampled under them."""

import numpy as np
import numpy.typing as npt

from scanner.errors import Refused
from scanner.watermark import cut


def sampling_weights(
    logits: npt.NDArray[np.float32], temperature: float, top_k: int, top_p: float
) -> npt.NDArray[np.float64]:
    """Weights that a token is sampled by: float64[V], probabilities over the largest one, for logits float32[V]."""
    weights: npt.NDArray[np.float64] = np.subtract(logits, logits.max(), dtype=np.float64)
    weights /= temperature
    np.exp(weights, out=weights)
    cut(weights, top_k, top_p)
    return weights


def check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    """Refuse sampling parameters under which there is nothing to sample.

    Raises:
        Refused: naming the parameter, its value and what is allowed.
    """
    if not 0 < temperature < float("inf"):
        raise Refused(f"temperature = {temperature} is not allowed; a number above 0 is needed")
    if top_k < 0:
        raise Refused(f"top_k = {top_k} is not allowed; 0 (keep all tokens) or more is needed")
    if not 0 < top_p <= 1:
        raise Refused(f"top_p = {top_p} is not allowed; a number above 0 and at most 1 (keep all tokens) is needed")
