"""Slow, obvious references: the paper's formulas as loops. Every fast form is tested against these."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import combinations, product

import numpy as np

from stream_ccsd.divergence.search.windows import CATEGORY_CHANGED, MERCHANT_CHANGED


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
    alike = [[likeness(i, j) for j in range(len(x_q))] for i in range(len(x_p))]  # once, not at each reference
    total = 0.0
    for r, i, j in product(range(len(reference)), range(len(x_p)), range(len(x_q))):
        total += a[r, i] * b[r, j] * alike[i][j]
    return total / len(reference)


def one_sided_term(x_p, y_p, x_q, y_q, tau, sigma) -> float:
    """One distribution smoothed, the other as observed; averaged over both directions."""
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


def products(windows, queries):
    """Of each query with each window."""
    return np.array([[sum(float(a) * b for a, b in zip(z, q, strict=True)) for z in windows] for q in queries])


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


# --- Evidence and takeover, from transactions as they are: texts, lists and sums ----------------------------------

CELL = 0.01
KEPT = 128  # newest transactions that an account's places and values are looked up in
COUNTED = 24  # newest transactions that are counted


def cell(value):
    return round(value / CELL)


def bump(distance, sigma):
    """A Gaussian density at whole cells, cut off after six bandwidths."""
    if distance > math.ceil(6 * sigma / CELL):
        return 0.0
    return math.exp(-0.5 * (distance * CELL / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))


def kernel_sum(values, at, sigma):
    return sum(bump(abs(cell(v) - cell(at)), sigma) for v in values)


def backed_off(inside, mass, strength, behind):
    return (inside + strength * behind) / (mass + strength)


def departure(p, ratio):
    """Evidence of a field in which only a share p of frauds differ."""
    return math.log(p) + ratio if ratio > 30 else math.log(1 - p + p * math.exp(ratio))


def by_account(transactions):
    accounts = {}
    for t in transactions:
        accounts.setdefault(t.account, []).append(t)
    return {name: sorted(own, key=lambda t: t.time) for name, own in sorted(accounts.items())}


def signed_log(value, scale):
    return math.copysign(math.log1p(abs(value) / scale), value)


def octave(gap, scale):
    return min(int(math.log1p(gap / scale) / math.log(2)), 63)


def decayed(values, half_life):
    """Sum and weight of values from oldest to newest; the newest counts for 1."""
    weights = [0.5 ** (age / half_life) for age in range(len(values))][::-1]
    return sum(w * v for w, v in zip(weights, values, strict=True)), sum(weights)


class Axes:
    """What all transactions alike lay out: the usual amount of a category, scales of gaps and numbers."""

    def __init__(self, transactions, numbers):
        logs = [math.log1p(t.amount) for t in transactions]
        self.everywhere = float(np.median(logs))
        self.categories = sorted({t.category for t in transactions})
        self.pairs = {(t.category, t.merchant) for t in transactions}
        self.center = {}
        for category in self.categories:
            own = [math.log1p(t.amount) for t in transactions if t.category == category]
            self.center[category] = (len(own) * float(np.median(own)) + 10 * self.everywhere) / (len(own) + 10)
        self.amount_scale = math.log(max(math.expm1(max(logs)), 1.0))
        gaps = [b.time - a.time for own in by_account(transactions).values() for a, b in itertools.pairwise(own)]
        self.gap_scale = 0.01 * float(np.median([g for g in gaps if g > 0])) if any(g > 0 for g in gaps) else 1.0
        self.octaves = min(math.floor(math.log1p(max(gaps, default=0.0) / self.gap_scale) / math.log(2)) + 1, 64)
        self.number_scale, self.number_reach = {}, {}
        for name in numbers:
            there = [t.fields[name] for t in transactions if t.fields.get(name) is not None]
            sizes = [abs(v) for v in there if v != 0]
            self.number_scale[name] = float(np.median(sizes)) if sizes else 1.0
            places = [signed_log(v, self.number_scale[name]) for v in there]
            self.number_reach[name] = max(places) - min(places) + 1 if places else 1.0

    def residual(self, t):
        return math.log1p(t.amount) - self.center.get(t.category, self.everywhere)


class View:
    """What the earlier transactions of an account, in the order they came in, say about its next one."""

    def __init__(self, past, t, axes, settings, calendar):
        half_life, longest = settings.half_life, settings.window + settings.local_history - 1
        total, self.usual_weight = decayed([axes.residual(p) for p in past], half_life)
        self.usual = total / self.usual_weight if past else 0.0
        self.kept = list(enumerate(reversed(past[-min(KEPT, longest) :]), start=1)) if past else []
        self.half_life, self.t = half_life, t
        self.weight = sum(0.5 ** (lag / half_life) for lag, _ in self.kept)
        self.at_place = self.same(lambda p: (p.category, p.merchant) == (t.category, t.merchant))
        self.alike = sum(
            0.5 ** (lag / half_life)
            * math.exp(-0.5 * ((math.log1p(t.amount) - math.log1p(p.amount)) / 0.25) ** 2)
            / (0.25 * math.sqrt(2 * math.pi))
            for lag, p in self.kept
            if (p.category, p.merchant) == (t.category, t.merchant)
        )
        self._time(past, t, axes, calendar)

    def same(self, is_same):
        return sum(0.5 ** (lag / self.half_life) for lag, p in self.kept if is_same(p))

    def _time(self, past, t, axes, calendar):
        newest, moments, gaps = -math.inf, [], []
        for p in past:  # a late one counts as if it came with the newest before it
            gaps.append(max(p.time - newest, 0.0))
            newest = max(newest, p.time)
            moments.append(newest)
        self.gap = max(t.time - newest, 0.0) if past else None
        total, weight = decayed([math.log1p(g / axes.gap_scale) for g in gaps[1:]], self.half_life)
        self.rate = 1 + min(max(math.floor(total / weight / math.log(2)), 0), 16) if weight >= 3 else 0
        self.hour = self.weekday = None
        self.in_hour = self.in_day = 0
        self.at_hour = self.hour_weight = 0.0
        day = calendar.of_days(1.0)
        if day is None:
            return
        now = max(t.time, newest)
        self.in_day = sum(now - m <= day for m in moments[-COUNTED:])
        self.in_hour = sum(now - m <= day / 24 for m in moments[-COUNTED:])
        self.hour, self.weekday = clock(t.time, calendar)
        hours = [int(clock(p.time, calendar)[0]) for p in past]
        near = [1.0 * (h == int(self.hour)) + 0.5 * ((h - int(self.hour)) % 24 in (1, 23)) for h in hours]
        self.at_hour = 0.5 * decayed(near, self.half_life)[0]
        self.hour_weight = decayed(hours, self.half_life)[1]


def clock(time, calendar):
    """Hour of day and weekday of a time, by the calendar of Python."""
    moment = (calendar.origin or datetime(2024, 1, 1, tzinfo=UTC)) + timedelta(**{calendar.unit: time})
    moment = moment.replace(microsecond=0) + timedelta(milliseconds=round(moment.microsecond / 1000))
    return moment.hour + moment.minute / 60 + (moment.second + moment.microsecond / 1e6) / 3600, moment.weekday()


class Densities:
    """The densities of normal transactions, summed up anew for each question."""

    def __init__(self, transactions, chosen, settings, calendar, axes=None):
        self.transactions, self.chosen, self.settings, self.calendar = transactions, chosen, settings, calendar
        self.names = [f.name for f in settings.declared if f.kind == "category"]
        self.numbers = [f.name for f in settings.declared if f.kind == "number"]
        self.axes = axes or Axes(transactions, self.numbers)

    @cached_property
    def views(self):
        accounts = by_account(self.transactions).values()
        return [
            View(own[:i], t, self.axes, self.settings, self.calendar) for own in accounts for i, t in enumerate(own)
        ]

    def amount_density(self, t):
        u, sigma, c = math.log1p(t.amount), self.chosen.sigma_u, self.chosen
        alike = [x for x in self.transactions if x.category == t.category]
        there = [x for x in alike if x.merchant == t.merchant]
        logs = [[math.log1p(x.amount) for x in part] for part in (self.transactions, alike, there)]
        every = kernel_sum(logs[0], u, sigma) / len(logs[0]) + self.settings.evidence_floor
        in_category = backed_off(kernel_sum(logs[1], u, sigma), len(alike), c.category_strength, every)
        return backed_off(kernel_sum(logs[2], u, sigma), len(there), c.merchant_strength, in_category)

    def place_shares(self, t):
        known, total = len(self.axes.categories), len(self.transactions)
        alike = [x for x in self.transactions if x.category == t.category]
        if t.category not in self.axes.categories:
            return 0.5 / (total + 0.5 * (known + 1)), 1.0
        merchants = len({x.merchant for x in alike}) + 1
        there = sum(x.merchant == t.merchant for x in alike)
        return (len(alike) + 0.5) / (total + 0.5 * (known + 1)), backed_off(
            there, len(alike), self.chosen.place_strength, 1 / merchants
        )

    def innovation(self, view):
        trusted = view.usual_weight / (view.usual_weight + self.chosen.usual_strength)
        return self.axes.residual(view.t) - view.usual * trusted

    def usual_density(self, innovation):
        values = [self.innovation(v) for v in self.views]
        return kernel_sum(values, innovation, self.chosen.usual_sigma) / len(values) + self.settings.evidence_floor

    def hour_density(self, hour):
        sigma, quarter = self.chosen.hour_sigma, lambda h: int(h * 4)
        wheel = [math.exp(-0.5 * (min(q, 96 - q) / 4 / sigma) ** 2) for q in range(96)]
        total = sum(wheel[(quarter(v.hour) - quarter(hour)) % 96] for v in self.views) / sum(wheel) * 4
        return (total + 1 / 24) / (len(self.views) + 1)

    def weekday_share(self, day):
        return (sum(v.weekday == day for v in self.views) + 1) / (len(self.views) + 7)

    def _shares_by_rate(self, rate, value, pairs, before):
        everyone = (sum(v == value for _, v in pairs) + before) / (len(pairs) + 1)
        alike = [v for r, v in pairs if r == rate]
        return backed_off(sum(v == value for v in alike), len(alike), self.chosen.pace_strength, everyone)

    def gap_share(self, rate, gap):
        pairs = [(v.rate, octave(v.gap, self.axes.gap_scale)) for v in self.views if v.gap is not None]
        at = octave(gap, self.axes.gap_scale)
        before = 1 / self.axes.octaves if at < self.axes.octaves else 1e-6
        spread = 1 + (64 - self.axes.octaves) * 1e-6
        everyone = (sum(v == at for _, v in pairs) + before) / (len(pairs) + spread)
        alike = [v for r, v in pairs if r == rate]
        return backed_off(sum(v == at for v in alike), len(alike), self.chosen.pace_strength, everyone)

    def count_share(self, span, rate, count):
        """Share of transactions that so many or more came before."""
        pairs = [(v.rate, getattr(v, span)) for v in self.views]
        fading = [0.5 ** (1 + n) for n in range(25)]
        return sum(self._shares_by_rate(rate, n, pairs, fading[n] / sum(fading)) for n in range(count, 25))

    def name_share(self, name, value):
        values = [t.fields.get(name) or "" for t in self.transactions]
        strength = self.chosen.name_strength[self.names.index(name)]
        return backed_off(values.count(value), len(values), strength, 1 / (len(set(values)) + 1))

    def number_density(self, name, value):
        scale, sigma = self.axes.number_scale[name], self.chosen.number_sigma[self.numbers.index(name)]
        there = [signed_log(v, scale) for v in (t.fields.get(name) for t in self.transactions) if v is not None]
        return kernel_sum(there, signed_log(value, scale), sigma) / max(len(there), 1) + self.settings.evidence_floor

    # --- evidence

    def terms(self, past, t):
        """Terms of the evidence, and of "somebody else", before the uninformative ones are left out."""
        view = View(past, t, self.axes, self.settings, self.calendar)
        terms, log_ratios = {}, {}
        self._money_and_place(view, t, terms, log_ratios)
        self._clock_and_pace(view, terms, log_ratios)
        p = self.settings.departure
        for i, name in enumerate(self.names):
            value = t.fields.get(name) or ""
            share = self.name_share(name, value)
            terms[f"{name}_own"] = 0.0
            if not value:
                terms[name] = departure(p, math.log(0.1 / max(share, 0.01)))
                continue
            known = len({x.fields.get(name) or "" for x in self.transactions})
            terms[name] = departure(p, math.log(1 / (known + 1) / share))
            same = view.same(lambda x, name=name, value=value: (x.fields.get(name) or "") == value)
            own = backed_off(same, view.weight, self.chosen.name_own[i], share)
            terms[f"{name}_own"] = departure(p, math.log(share / own))
            log_ratios[f"{name}_own"] = departure(0.5, math.log(share / own))
        for name in self.numbers:
            value = t.fields.get(name)
            absent = sum(x.fields.get(name) is None for x in self.transactions) / len(self.transactions)
            if value is None:
                terms[name] = departure(p, math.log(0.1 / max(absent, 0.01)))
            else:
                density = max(1 - absent, 0.01) * self.number_density(name, value)
                terms[name] = departure(p, -math.log(density * self.axes.number_reach[name]))
        return terms, log_ratios

    def _money_and_place(self, view, t, terms, log_ratios):
        s, c, u = self.settings, self.chosen, math.log1p(t.amount)
        normal = self.amount_density(t)
        terms["amount"] = cell(u) * CELL - math.log(normal) - self.axes.amount_scale
        share = c.usual_share * view.usual_weight / (view.usual_weight + c.usual_strength)
        own = (1 - share) * normal + share * self.usual_density(self.innovation(view))
        log_ratios["amount_own"] = math.log(normal / own)
        terms["amount_own"] = departure(s.amount_departure, log_ratios["amount_own"])
        in_category, at_merchant = self.place_shares(t)
        known = len(self.axes.categories)
        terms["category"] = -math.log(in_category * (known + 1))
        terms["merchant"] = -math.log(at_merchant * (len(self.axes.pairs) + 1) / (known + 1))
        place = in_category * at_merchant
        log_ratios["place_own"] = math.log(place / backed_off(view.at_place, view.weight, c.own_place_strength, place))
        terms["place_own"] = departure(s.departure, log_ratios["place_own"])
        beyond = max(view.at_place - s.settled, 0) / view.at_place if view.at_place else 0.0
        own = backed_off(view.alike * beyond, view.weight, c.own_place_strength, place * normal)
        terms["habit"] = -max(math.log(own / (place * normal)), 0.0)

    def _clock_and_pace(self, view, terms, log_ratios):
        p = self.settings.departure
        terms |= dict.fromkeys(("hour", "hour_own", "weekday", "gap", "count_hour", "count_day"), 0.0)
        if view.hour is not None:
            normal = self.hour_density(view.hour)
            terms["hour"] = departure(p, -math.log(normal * 24))
            own = backed_off(view.at_hour, view.hour_weight, self.chosen.own_hour_strength, normal)
            terms["hour_own"] = departure(p, math.log(normal / own))
            log_ratios["hour_own"] = departure(0.5, math.log(normal / own))
            terms["weekday"] = departure(p, -math.log(7 * self.weekday_share(view.weekday)))
        if view.gap is None:
            return
        terms["gap"] = departure(p, -math.log(self.gap_share(view.rate, view.gap) * self.axes.octaves))
        if view.hour is not None:
            for span, count in (("hour", view.in_hour), ("day", view.in_day)):
                share = self.count_share(f"in_{span}", view.rate, count)
                terms[f"count_{span}"] = departure(p, math.log((25 - count) / 25 / share))


def takeover(others, cap, drift):
    """The cumulative sum with a floor at 0, after each of these."""
    total, out = 0.0, []
    for other in others:
        total = max(0.0, total + min(other, cap) - drift)
        out.append(total)
    return out


def k_medoids_loss(distances, medoids):
    """Summed distance of every row to the nearest of these medoids."""
    return sum(min(distances[o][m] for m in medoids) for o in range(len(distances)))


def path_distances(distances, neighbours):
    """Shortest paths over edges to each row's nearest others (Floyd and Warshall); beyond the longest where none is."""
    n = len(distances)
    paths = [[0.0 if i == j else math.inf for j in range(n)] for i in range(n)]
    for i in range(n):
        for j in sorted((j for j in range(n) if j != i), key=lambda j: distances[i][j])[:neighbours]:
            paths[i][j] = paths[j][i] = distances[i][j]
    for middle, i, j in product(range(n), repeat=3):
        paths[i][j] = min(paths[i][j], paths[i][middle] + paths[middle][j])
    longest = max(length for row in paths for length in row if math.isfinite(length))
    return [
        [paths[i][j] if math.isfinite(paths[i][j]) else longest + distances[i][j] for j in range(n)] for i in range(n)
    ]


def adjusted_rand(one, two):
    """Pairs of rows that are together in both partitions, against how many chance would put there."""
    pairs = list(combinations(range(len(one)), 2))
    a = [one[i] == one[j] for i, j in pairs]
    b = [two[i] == two[j] for i, j in pairs]
    both, chance = sum(x and y for x, y in zip(a, b, strict=True)), sum(a) * sum(b) / max(len(pairs), 1)
    most = (sum(a) + sum(b)) / 2
    return 1.0 if most == chance else (both - chance) / (most - chance)


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


# --- Learning from verdicts: plain densities, trees as nested nodes, fraud rates as dicts -------------------------

LATELY = (1.0, 5.0, 20.0)
HALF_LIVES = (1.0, 2.0, 5.0, 20.0, 60.0)


def fraud_log_ratio(p, normal, diffuse, found, frauds, worth=24.0):
    """``log F / N`` where F is made of the prior density, worth some frauds, and the density of known frauds."""
    prior = (1 - p) * normal + p * diffuse
    return math.log((worth * prior + frauds * found) / (worth + frauds) / normal)


def attributed(weights, trees, term_of, inputs, count):
    """What each term counts for. A tree is a node: a value, and where it goes on a feature, a threshold and two nodes.

    The change of the value in a step belongs to the term of the feature of that node.
    """
    terms = [w * x for w, x in zip(weights, inputs, strict=False)]
    terms += [0.0] * (count - len(terms))
    for node in trees:
        while "feature" in node:
            child = node["left" if inputs[node["feature"]] <= node["threshold"] else "right"]
            terms[term_of[node["feature"]]] += child["value"] - node["value"]
            node = child
    return terms


def lately(past, t, axes, settings, calendar):
    """By half-life, how far above its usual the account paid, added up, and how often it paid: as of this moment."""
    day = calendar.of_days(1.0)
    beyond, moments, newest = [], [], -math.inf
    for i, p in enumerate(past):
        above = axes.residual(p) - View(past[:i], p, axes, settings, calendar).usual
        beyond.append(min(max(above, -3.0), 3.0))
        newest = max(newest, p.time)  # a late one counts as if it came with the newest before it
        moments.append(newest)
    if day is None:
        ages = [float(len(past) - i) for i in range(len(past))]
    else:
        ages = [(max(t.time, newest) - m) / day for m in moments]
    return [
        (
            sum(b * 0.5 ** (age / life) for b, age in zip(beyond, ages, strict=True)),
            sum(0.5 ** (age / life) for age in ages),
        )
        for life in LATELY
    ]


class LabelCounts:
    """The counts of a label buffer, from scratch at every model update; days are its unit of time.

    ``entered`` gives each counted transaction its label, the update it was counted in, and how stale it was then.
    """

    def __init__(self, delay, standing):
        self.delay, self.standing = delay, standing
        self.update, self.prompt = 0, None
        self.transactions, self.verdicts = {}, {}
        self.entered = {}
        self.began = {}  # of accounts: the update of their first fraud

    def see(self, transactions):
        self.transactions |= {(t.account, t.id): t for t in transactions}

    def hear(self, verdicts):
        for v in verdicts:
            self.verdicts.setdefault(v.key, []).append(v)

    def learn(self, moment):
        self.update += 1
        for account in [*self.began]:
            if self.count(lambda t, account=account: t.account == account, 60.0, self.began[account])[1] <= 0.01:
                del self.began[account]
        judged, silent = {}, {}
        for key, t in self.transactions.items():
            if key in self.verdicts:
                judged[key] = self.standing(self.verdicts[key]).label
            elif t.time <= moment - self.delay:
                silent[key] = "silent"
        for now in (judged, silent):  # those with a verdict come first
            changed = {key: label for key, label in now.items() if self.entered.get(key, (None,))[0] != label}
            for key in changed:
                self.entered.pop(key, None)
            changed = {key: label for key, label in changed.items() if label is not None}
            ages = {key: max(moment - self.transactions[key].time, 0.0) for key in changed}
            soon = [ages[key] for key, label in changed.items() if label == "fraud"]
            if soon:
                fifth = float(np.quantile(soon, 0.2))
                self.prompt = fifth if self.prompt is None else 0.9 * self.prompt + 0.1 * fifth
            for key, label in changed.items():
                late = 0.0 if self.prompt is None else max(ages[key] - self.prompt, 0.0)
                self.entered[key] = (label, self.update, late if late >= 1.0 else 0.0)
                if label == "fraud":
                    self.began.setdefault(key[0], self.update)

    def count(self, is_there, life, since=0):
        """Frauds and all transactions, faded."""
        frauds = total = 0.0
        for key, (label, update, stale) in self.entered.items():
            if update >= since and is_there(self.transactions[key]):
                left = 0.5 ** ((self.update - update + stale) / life)
                frauds += left * (label == "fraud")
                total += left
        return frauds, total
