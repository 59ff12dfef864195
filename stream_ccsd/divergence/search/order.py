"""The order in which the library is searched: everything about it that no query changes, made once per model.

A query changes the weight of a (category, merchant) pair only where it shares the category or the merchant. So there
are four kinds of pairs to a query, and within each kind the order of the pairs is always the same. It is made here.
Neighbouring pairs of a category that hold few windows form one block, so that the cost of a search depends on windows
and blocks of windows, not on the number of pairs.

Nothing of this is stored with a model, because it follows from the windows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stream_ccsd.divergence.search.simd import make_tiles
from stream_ccsd.numerics.arrays import AnyArray, FloatArray, read_only
from stream_ccsd.numerics.compiling import inner
from stream_ccsd.numerics.vector import first_from

# Bits for what a pair does not share with the query: the kinds of pairs are sums of these.
OTHER_CATEGORY, OTHER_MERCHANT = 1, 2
_KINDS = 4
# Windows of a block, about: enough for vector instructions, few enough for the search to end soon after it can.
_ROWS = 128


class SearchOrder(NamedTuple):
    """Groups are the (category, merchant) pairs; a level is a prior, 0 the highest; a rank is a bias, 0 the highest."""

    tiles: AnyArray  # the windows themselves, for vector registers
    base: FloatArray  # (n,), a window's log prior less its half square, in units of sigma_x^2
    group: AnyArray  # (n,) int32: of each window
    level: AnyArray  # (g,) int32: of each group
    rank: AnyArray  # (4, levels) int32: of a group's bias, by kind and level
    bias: FloatArray  # (ranks,), log weights at distance 0
    offset: FloatArray  # (4,), what each kind adds to a log prior
    first: AnyArray  # (b + 1,) int64: first group of each block
    top: AnyArray  # (b,) int32: the highest level in each block
    place: AnyArray  # (b,) int32: of each block's category in ``categories``
    categories: AnyArray  # (c,) uint32, rising
    first_of_category: AnyArray  # (c + 1,) int64: its first group
    first_block: AnyArray  # (c + 1,) int64: its first block
    in_category: AnyArray  # (b,) int32: the blocks of each category, from the highest down
    overall: AnyArray  # (b,) int32: all blocks, from the highest down
    merchants: AnyArray  # (g,) uint32, rising
    at_merchant: AnyArray  # (g,) int32: the groups of each of these, from the highest down
    largest: float  # half square, in units of sigma_x^2, and largest bias of any kind, without its sign


def build_search_order(
    z: AnyArray,
    sigma_x: float,
    start: AnyArray,
    category: AnyArray,
    merchant: AnyArray,
    log_prior: FloatArray,
    log_rho_category: float,
    log_rho_merchant: float,
) -> SearchOrder:
    """The orders of groups that lie by category and then by merchant, as an index holds them."""
    size, groups = np.diff(start), len(log_prior)
    opens_category = np.append(True, category[1:] != category[:-1])[:groups]
    alone = size >= _ROWS
    beside_alone = alone | np.append(False, alone[:-1])[:groups]
    next_rows = np.append(True, np.diff(start[:-1] // _ROWS) > 0)[:groups]
    first = np.flatnonzero(opens_category | beside_alone | next_rows)
    first_of_category = np.flatnonzero(opens_category)

    falling, level = np.unique(-log_prior, return_inverse=True)
    # Added one after the other, as to a single group's prior: the same bits.
    of_kind = np.stack([-falling] * _KINDS)
    of_kind[[OTHER_CATEGORY, OTHER_CATEGORY | OTHER_MERCHANT]] += log_rho_category
    of_kind[[OTHER_MERCHANT, OTHER_CATEGORY | OTHER_MERCHANT]] += log_rho_merchant
    falling_bias, rank = np.unique(-of_kind, return_inverse=True)
    top = np.minimum.reduceat(level, first) if groups else level
    place = np.searchsorted(first_of_category, first, side="right") - 1
    at_merchant = np.lexsort((level, merchant))
    wide = np.asarray(z, float)
    with np.errstate(over="ignore"):  # infinite under an absurdly narrow bandwidth: then distances are taken directly
        half_square = 0.5 * np.sum(wide * wide, axis=1) / sigma_x**2
    return read_only(
        SearchOrder(
            tiles=make_tiles(z),
            base=np.repeat(log_prior, size) - half_square,
            group=np.repeat(np.arange(groups, dtype=np.int32), size),
            level=level.astype(np.int32),
            rank=rank.reshape(of_kind.shape).astype(np.int32),
            bias=-falling_bias,
            offset=np.array([0.0, log_rho_category, log_rho_merchant, log_rho_category + log_rho_merchant]),
            first=np.append(first, groups).astype(np.int64),
            top=top.astype(np.int32),
            place=place.astype(np.int32),
            categories=category[first_of_category],
            first_of_category=np.append(first_of_category, groups).astype(np.int64),
            first_block=np.append(np.searchsorted(first, first_of_category), len(first)).astype(np.int64),
            in_category=np.lexsort((top, place)).astype(np.int32),
            overall=np.argsort(top, kind="stable").astype(np.int32),
            merchants=merchant[at_merchant],
            at_merchant=at_merchant.astype(np.int32),
            largest=float(half_square.max(initial=0.0) + np.abs(falling_bias).max(initial=0.0)),
        )
    )


class Walk(NamedTuple):
    """How far a search has come in the orders of the four kinds."""

    pair: int  # the group of the query's own pair, -1 where the library has none
    place: int  # of the query's category, -1 where the library has none
    next: AnyArray  # (4,) int64
    end: AnyArray  # (4,) int64


@inner()
def start_walk(blocks: SearchOrder, group_merchants: AnyArray, category: int, merchant: int) -> Walk:
    """The orders as a query meets them; ``group_merchants`` are those of the groups, rising in each category."""
    at, end = np.zeros(_KINDS, np.int64), np.zeros(_KINDS, np.int64)
    pair = place = -1
    found = first_from(blocks.categories, 0, len(blocks.categories), category)
    if found < len(blocks.categories) and blocks.categories[found] == category:
        place = found
        low, high = blocks.first_of_category[place], blocks.first_of_category[place + 1]
        group = first_from(group_merchants, low, high, merchant)
        if group < high and group_merchants[group] == merchant:
            pair = group
            end[0] = 1
        at[OTHER_MERCHANT], end[OTHER_MERCHANT] = blocks.first_block[place], blocks.first_block[place + 1]
    groups = len(blocks.merchants)
    at[OTHER_CATEGORY] = first_from(blocks.merchants, 0, groups, merchant)
    end[OTHER_CATEGORY] = first_from(blocks.merchants, at[OTHER_CATEGORY], groups, merchant + 1)
    end[OTHER_CATEGORY | OTHER_MERCHANT] = len(blocks.overall)
    return Walk(pair, place, at, end)


@inner()
def step_walk(blocks: SearchOrder, walk: Walk) -> tuple[int, int, int]:
    """The kind with the highest bias to come, its group (of the first two kinds) or block, and the bias's rank.

    The kind is -1 where the walk has ended.
    """
    at, end = walk.next, walk.end
    # Pairs that also share the query's category are in another order.
    while at[1] < end[1] and blocks.at_merchant[at[1]] == walk.pair:
        at[1] += 1
    while at[3] < end[3] and blocks.place[blocks.overall[at[3]]] == walk.place:
        at[3] += 1
    best, chosen, highest = -1, -1, len(blocks.bias)
    for kind in range(_KINDS):
        if at[kind] == end[kind]:
            continue
        if kind == 0:
            item = walk.pair
        elif kind == OTHER_CATEGORY:
            item = blocks.at_merchant[at[kind]]
        elif kind == OTHER_MERCHANT:
            item = blocks.in_category[at[kind]]
        else:
            item = blocks.overall[at[kind]]
        level = blocks.level[item] if kind < OTHER_MERCHANT else blocks.top[item]
        if blocks.rank[kind, level] < highest:
            best, chosen, highest = kind, item, blocks.rank[kind, level]
    if best >= 0:
        at[best] += 1
    return best, chosen, highest
