"""Products of many windows with a few queries, in vector registers.

Windows are stored in tiles of eight: their first values side by side, then their second, and so on. One vector
instruction then handles eight windows, and a sum never crosses its lanes. Each product is the same chain of additions,
and has the same bits, whether a window meets one query or several. The code is LLVM's own language, because the
compiler does not keep sums in registers across a loop over arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from stream_ccsd.numerics.arrays import AnyArray
from stream_ccsd.numerics.compiling import compiled

WIDTH = 8
"""Windows of a tile."""
TOGETHER = 4
"""Queries that meet a tile at once; one alone meets as many tiles."""

_INDEX, _LANE = ir.IntType(64), ir.IntType(32)
_STORED, _SUMS = ir.VectorType(ir.FloatType(), WIDTH), ir.VectorType(ir.DoubleType(), WIDTH)


def make_tiles(z: AnyArray) -> AnyArray:
    """Windows, a row each, as tiles. Zeros fill up the last, and the tiles behind it that a single query runs into."""
    n, k = z.shape
    tiles = -(-n // WIDTH) + TOGETHER - 1
    padded = np.zeros((tiles * WIDTH, k), np.float32)
    padded[:n] = z
    return np.ascontiguousarray(padded.reshape(tiles, WIDTH, k).transpose(0, 2, 1))


def _multiply(tiles: int, queries: int) -> Callable[..., None]:
    """A function for so many tiles and queries, each of which has a sum of its own."""

    @intrinsic  # type: ignore[untyped-decorator, unused-ignore]
    def kernel(_: Any, table: Any, tile: Any, asked: Any, query: Any, out: Any, place: Any) -> Any:
        number = types.intp
        return types.void(table, number, asked, number, out, number), generate

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table, asked, out = (
            context.make_array(signature.args[i])(context, builder, arguments[i]) for i in range(0, 6, 2)
        )
        tile, query, place = arguments[1::2]
        k, longest, room = (builder.extract_value(a.shape, 1) for a in (table, asked, out))

        def at(array: Any, row: Any, more: int, length: Any, column: Any = None) -> Any:
            start = builder.mul(builder.add(row, _INDEX(more)), length)
            return builder.gep(array.data, [start if column is None else builder.add(start, column)])

        size = builder.mul(k, _INDEX(WIDTH))
        rows = [at(table, tile, i, size) for i in range(tiles)]
        values = [at(asked, query, i, longest) for i in range(queries)]
        before, loop, after = (builder.block, *(builder.append_basic_block(name) for name in ("loop", "after")))
        builder.branch(loop)
        builder.position_at_end(loop)
        j = builder.phi(_INDEX)
        sums = [[builder.phi(_SUMS) for _ in range(queries)] for _ in range(tiles)]
        multiply_add = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_SUMS, [_SUMS] * 3), f"llvm.fmuladd.v{WIDTH}f64"
        )
        step = builder.mul(j, _INDEX(WIDTH))
        wide = [
            builder.fpext(builder.load(builder.bitcast(builder.gep(row, [step]), _STORED.as_pointer()), align=4), _SUMS)
            for row in rows
        ]
        nothing = ir.Constant(_SUMS, ir.Undefined)
        new: list[list[Any]] = [[None] * queries for _ in range(tiles)]
        for c in range(queries):
            value = builder.insert_element(nothing, builder.load(builder.gep(values[c], [j])), _LANE(0))
            value = builder.shuffle_vector(value, nothing, ir.Constant(ir.VectorType(_LANE, WIDTH), [0] * WIDTH))
            for i in range(tiles):
                new[i][c] = builder.call(multiply_add, [wide[i], value, sums[i][c]])
        following = builder.add(j, _INDEX(1))
        j.add_incoming(_INDEX(0), before)
        j.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, k), loop, after)
        builder.position_at_end(after)
        for i in range(tiles):
            for c in range(queries):
                sums[i][c].add_incoming(ir.Constant(_SUMS, [0.0] * WIDTH), before)
                sums[i][c].add_incoming(new[i][c], loop)
                to = at(out, _INDEX(c), 0, room, builder.add(place, _INDEX(i * WIDTH)))
                builder.store(new[i][c], builder.bitcast(to, _SUMS.as_pointer()), align=8)
        return context.get_dummy_value()

    return kernel  # type: ignore[no-any-return, unused-ignore]


_one_query, _some_queries = _multiply(TOGETHER, 1), _multiply(1, TOGETHER)


@compiled()
def multiply(table: AnyArray, first: int, last: int, queries: AnyArray, query: int, count: int, out: AnyArray) -> None:
    """Products of the tiles from ``first`` to before ``last`` with one query or ``TOGETHER`` of them, a row each.

    One query takes tiles in steps of ``TOGETHER``, so the output must have space for up to three more.
    """
    if count == 1:
        for tile in range(first, last, TOGETHER):
            _one_query(table, tile, queries, query, out, (tile - first) * WIDTH)
    else:
        for tile in range(first, last):
            _some_queries(table, tile, queries, query, out, (tile - first) * WIDTH)
