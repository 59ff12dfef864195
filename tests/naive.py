"""Slow, obvious references: the paper's formulas as loops. Every fast form is tested against these."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import numpy as np

from stream_ccsd.library.windows import CATEGORY_CHANGED, MERCHANT_CHANGED


def gaussian(a, b, bandwidth) -> float:
    a, b = np.atleast_1d(a), np.atleast_1d(b)
    bandwidth = np.broadcast_to(bandwidth, a.shape)
    return math.exp(-sum((x - y) ** 2 / (2 * s**2) for x, y, s in zip(a, b, bandwidth, strict=True)))


def match(c, d, gamma) -> float:
    return math.prod(1.0 if x == y else gamma for x, y in zip(np.atleast_1d(c), np.atleast_1d(d), strict=True))


def row_weights(reference, condition, tau):
    """A_li = K(x_l, x_i) / sum_i' K(x_l, x_i')."""
    a = np.array([[gaussian(x, c, tau) for c in condition] for x in reference])
    return a / a.sum(axis=1, keepdims=True)


def complete(x, y):
    keep = [
        not (np.isnan(np.atleast_1d(a)).any() or np.isnan(np.atleast_1d(b)).any()) for a, b in zip(x, y, strict=True)
    ]
    return np.asarray(x)[keep], np.asarray(y)[keep]


def gram_term(x_p, y_p, x_q, y_q, reference, tau, sigma, likeness=None) -> float:
    """I_pq = 1/n_r sum_l a_l^T L_pq b_l (Eq. 3)."""
    a, b = row_weights(reference, x_p, tau), row_weights(reference, x_q, tau)
    likeness = likeness or (lambda i, j: gaussian(y_p[i], y_q[j], sigma))
    total = 0.0
    for r, i, j in product(range(len(reference)), range(len(x_p)), range(len(x_q))):
        total += a[r, i] * b[r, j] * likeness(i, j)
    return total / len(reference)


def one_sided_term(x_p, y_p, x_q, y_q, tau, sigma) -> float:
    """One law smoothed, the other as observed; averaged over both directions."""
    forward, backward = row_weights(x_p, x_q, tau), row_weights(x_q, x_p, tau)
    total = 0.0
    for i, j in product(range(len(x_p)), range(len(x_q))):
        weight = 0.5 * (forward[i, j] / len(x_p) + backward[j, i] / len(x_q))
        total += weight * gaussian(y_p[i], y_q[j], sigma)
    return total


def symmetric_logarithm(pp, qq, pq, ridge) -> float:
    return 0.5 * (math.log(pp + ridge) + math.log(qq + ridge) - 2 * math.log(pq + ridge))


def divergence(x_p, y_p, x_q, y_q, tau, sigma, reference=None, weighting="two-sided", ridge=None) -> float:
    (x_p, y_p), (x_q, y_q) = complete(x_p, y_p), complete(x_q, y_q)
    if weighting == "one-sided":
        pp = one_sided_term(x_p, y_p, x_p, y_p, tau, sigma)
        qq = one_sided_term(x_q, y_q, x_q, y_q, tau, sigma)
        pq = one_sided_term(x_p, y_p, x_q, y_q, tau, sigma)
    else:
        if reference is None:
            reference = np.unique(np.concatenate([x_p, x_q]), axis=0)
        pp = gram_term(x_p, y_p, x_p, y_p, reference, tau, sigma)
        qq = gram_term(x_q, y_q, x_q, y_q, reference, tau, sigma)
        pq = gram_term(x_p, y_p, x_q, y_q, reference, tau, sigma)
    ridge = 1e-10 * 0.5 * (pp + qq) if ridge is None else ridge
    return symmetric_logarithm(pp, qq, pq, ridge)


def pairwise(series, other, tau, sigma, weighting, ridge):
    """All pairs, each by :func:`divergence` on the common time grid."""
    others = series if other is None else other
    length = max(len(s) for s in [*series, *others])
    grid = np.arange(length, dtype=float)

    def one(a, b):
        return divergence(grid[: len(a)], a, grid[: len(b)], b, tau, sigma, grid, weighting, ridge)

    return np.array([[one(a, b) for b in others] for a in series])


def effective_rank(gram) -> float:
    eigenvalues = [max(v, 0.0) for v in np.linalg.eigvalsh(gram)]
    shares = [v / sum(eigenvalues) for v in eigenvalues if v > 0]
    return math.exp(-sum(s * math.log(s) for s in shares))


def pair_distances(points):
    points = np.atleast_2d(np.asarray(points, float).T).T
    return [math.dist(points[i], points[j]) for i in range(len(points)) for j in range(i)]


# --- The fraud scores, as the paper and method write them ---------------------------------------------------------


def library_log_weights(windows, x, category, merchant, s, sigma_x):
    """Log of RBF x mismatch attenuation x rarity prior, for every library window."""
    pairs = list(zip(windows.categories.tolist(), windows.merchants.tolist(), strict=True))
    frequency = Counter(pairs)
    out = []
    for z, pair in zip(windows.z.astype(np.float32).astype(float), pairs, strict=True):
        w = -float(np.sum((z - x) ** 2)) / (2 * sigma_x**2)
        w += math.log(s.rho_category) * (pair[0] != category) * s.attenuation
        w += math.log(s.rho_merchant) * (pair[1] != merchant) * s.attenuation
        w -= s.rarity * s.rarity_beta * math.log(frequency[pair] + s.rarity_alpha)
        out.append(w)
    return np.array(out)


def window_score(windows, amounts, categories, merchants, s, sigma_x, sigma_y, known=None, stride=1):
    """The paper's score of a history's last window, with nothing clever: double sums over all pairs, in logarithms.

    ``known`` are the amounts that mean and deviation are taken of: by default those seen so far.
    """
    k, t = s.window, len(amounts) - 1
    known = amounts if known is None else known
    mean, deviation = np.mean(known), np.std(known)
    deviation = deviation if deviation > 0 else 1.0

    def window(end):
        return (np.asarray(amounts[end - k + 1 : end + 1]) - mean) / deviation

    def flags(end):
        return categories[end] != categories[end - 1], merchants[end] != merchants[end - 1]

    x = window(t)
    log_q = library_log_weights(windows, x, categories[t], merchants[t], s, sigma_x)
    top = np.argsort(-log_q, kind="stable")[: s.neighbours]
    q = log_q[top] - np.logaddexp.reduce(log_q[top])
    y_q = [abs(windows.change[j]) for j in top]
    f_q = [(bool(windows.regime[j] & CATEGORY_CHANGED), bool(windows.regime[j] & MERCHANT_CHANGED)) for j in top]

    p, y_p, f_p = [], [], []
    for lag in range(stride, stride * s.local_history + 1, stride):
        end = t - lag
        if end < k - 1:
            break
        w = (s.rho_category if categories[end] != categories[t] else 1.0) if s.attenuation else 1.0
        w *= (s.rho_merchant if merchants[end] != merchants[t] else 1.0) if s.attenuation else 1.0
        w *= 0.5 ** (lag / s.half_life) if s.decay else 1.0
        if s.boosts:
            w *= s.eta_category if flags(end)[0] == flags(t)[0] else 1.0
            w *= s.eta_merchant if flags(end)[1] == flags(t)[1] else 1.0
        square = sum((a - b) ** 2 for a, b in zip(window(end), x, strict=True))
        p.append(math.log(w) - square / (2 * sigma_x**2))
        y_p.append(abs(amounts[end] - amounts[end - 1]) / deviation)
        f_p.append(flags(end))
    if not p:
        return math.nan
    p = np.array(p) - np.logaddexp.reduce(p)

    def likeness(y, f, y2, f2):
        value = -((y - y2) ** 2) / (2 * sigma_y**2)
        if s.gates:
            value += math.log(s.gate_category if f[0] != f2[0] else 1.0)
            value += math.log(s.gate_merchant if f[1] != f2[1] else 1.0)
        return value

    def term(w, y, f, w2, y2, f2):
        left, right = list(zip(w, y, f, strict=True)), list(zip(w2, y2, f2, strict=True))
        return np.logaddexp.reduce([a + b + likeness(u, g, v, h) for a, u, g in left for b, v, h in right])

    pp, qq, pq = term(p, y_p, f_p, p, y_p, f_p), term(q, y_q, f_q, q, y_q, f_q), term(p, y_p, f_p, q, y_q, f_q)
    return 0.5 * (pp + qq) - pq


def outcome_kernel(o, o2, s):
    value = math.exp(-((o[0] - o2[0]) ** 2) / (2 * s.sigma_u**2))
    return value * (1.0 if o[1] == o2[1] else s.mismatch) * (1.0 if o[2] == o2[2] else s.mismatch)


def outcome_score(o, law, s):
    """-log( sum_j q_j k(o, o_j) / sqrt(sum_ij q_i q_j k(o_i, o_j)) ), law a list of (share, outcome)."""
    density = sum(share * outcome_kernel(o, o2, s) for share, o2 in law) + s.outcome_ridge
    own = sum(a * b * outcome_kernel(x, y, s) for a, x in law for b, y in law)
    return -math.log(density / math.sqrt(own))


def habit_score(history, o, law, s, strength):
    """The same with the account's decayed law mixed in; history from oldest to newest, without o."""
    density = sum(share * outcome_kernel(o, o2, s) for share, o2 in law) + s.outcome_ridge
    own = sum(a * b * outcome_kernel(x, y, s) for a, x in law for b, y in law)
    likeness = weight = 0.0
    for lag, past in enumerate(reversed(history), start=1):
        if lag > s.local_history:
            break
        decay = 0.5 ** (lag / s.half_life)
        likeness += decay * outcome_kernel(o, past, s)
        weight += decay
    return -math.log((likeness + strength * density) / (weight + strength) / math.sqrt(own))


def k_medoids_loss(distances, medoids):
    """Summed distance of every row to the nearest of these medoids."""
    return sum(min(distances[o][m] for m in medoids) for o in range(len(distances)))


def best_swap_gain(distances, medoids):
    """By how much the best exchange of one medoid for one other row lowers the loss; 0 if none does."""
    now = k_medoids_loss(distances, medoids)
    best = 0.0
    for i in range(len(medoids)):
        for candidate in range(len(distances)):
            if candidate not in medoids:
                swapped = [*medoids[:i], candidate, *medoids[i + 1 :]]
                best = max(best, now - k_medoids_loss(distances, swapped))
    return best
