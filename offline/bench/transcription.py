"""The paper's score written down in plain numpy: what one would have without any of the fast forms. A peer to time."""

from __future__ import annotations

import numpy as np

from stream_ccsd.library.index import Index
from stream_ccsd.library.windows import CATEGORY_CHANGED, MERCHANT_CHANGED
from stream_ccsd.numeric import AnyArray, FloatArray
from stream_ccsd.settings import Settings


def numpy_window_score(
    index: Index, sigma_y: float, s: Settings, amounts: FloatArray, categories: AnyArray, merchants: AnyArray
) -> float:
    """Score of the last window of a history: all distances, a partial sort, and three full kernel matrices."""
    k, t = s.window, len(amounts) - 1
    ends = np.arange(t - 1, max(t - 1 - s.local_history, k - 2), -1)
    if t < k - 1 or not len(ends):
        return float("nan")
    z = (amounts - amounts.mean()) / (amounts.std() or 1.0)
    change = np.abs(np.diff(z, prepend=z[0]))
    flags = np.stack([np.diff(categories, prepend=categories[0]) != 0, np.diff(merchants, prepend=merchants[0]) != 0])
    x = z[t - k + 1 :]

    group = np.repeat(np.arange(len(index.log_prior)), np.diff(index.start))
    log_q = -((index.z - x) ** 2).sum(axis=1) / (2 * index.sigma_x**2) + index.log_prior[group]
    log_q += np.where(index.category[group] != categories[t], np.log(s.rho_category), 0.0)
    log_q += np.where(index.merchant[group] != merchants[t], np.log(s.rho_merchant), 0.0)
    top = np.argpartition(-log_q, s.neighbours)[: s.neighbours] if len(log_q) > s.neighbours else np.arange(len(log_q))
    q = np.exp(log_q[top] - log_q[top].max())
    q /= q.sum()

    windows = np.stack([z[e - k + 1 : e + 1] for e in ends])
    p = np.exp(-((windows - x) ** 2).sum(axis=1) / (2 * index.sigma_x**2)) * 0.5 ** ((t - ends) / s.half_life)
    p *= np.where(categories[ends] != categories[t], s.rho_category, 1.0)
    p *= np.where(merchants[ends] != merchants[t], s.rho_merchant, 1.0)
    p *= np.where(flags[0, ends] == flags[0, t], s.eta_category, 1.0)
    p *= np.where(flags[1, ends] == flags[1, t], s.eta_merchant, 1.0)
    p /= p.sum()

    def term(w: FloatArray, y: FloatArray, f: AnyArray, w2: FloatArray, y2: FloatArray, f2: AnyArray) -> float:
        likeness = np.exp(-((y[:, None] - y2) ** 2) / (2 * sigma_y**2))
        likeness *= np.where(f[0][:, None] != f2[0], s.gate_category, 1.0)
        likeness *= np.where(f[1][:, None] != f2[1], s.gate_merchant, 1.0)
        return float(w @ likeness @ w2)

    regime = index.regime[top]
    local = (p, change[ends], flags[:, ends])
    library = (q, index.y[top], np.stack([regime & CATEGORY_CHANGED, regime & MERCHANT_CHANGED]) != 0)
    return -np.log(term(*local, *library) / np.sqrt(term(*local, *local) * term(*library, *library)))
