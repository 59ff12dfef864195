"""What the files of a model must hold, so that compiled code may take it as it is.

Compiled code checks no bounds. Given a place beyond an array, an order that is none, or a tree that leads back to its
root, it would read foreign memory or never end. Hashes say that files are those that were written, not that what was
written makes sense. So everything that is loaded goes through here first, and is not checked again afterwards.

Bounds of numbers are where formulas lose their meaning or their digits, not where values become unwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from stream_ccsd.calendar import Calendar
from stream_ccsd.divergence.search.windows import REGIME_COUNT, WIDEST_CHANGE
from stream_ccsd.evidence.densities import COUNTS, LEAST_SCALE, OCTAVES, QUARTERS, RATES
from stream_ccsd.evidence.supervised import input_names, unsupervised
from stream_ccsd.fields import density_terms
from stream_ccsd.model.calibration import Tail
from stream_ccsd.numerics.arrays import AnyArray
from stream_ccsd.settings import Settings

WINDOWS, LAWS, NAMES, ACCOUNTS, LEARNT = (
    f"{name}.arrow" for name in ("windows", "laws", "names", "accounts", "learnt")
)
_DESCRIPTION = "model.json"

_CODE = 2**32 - 1
_TINY, _HUGE = 1e-300, 1e300
# Bandwidths whose squares, squared again, are still numbers; strengths and weights in transactions.
_NARROWEST, _WIDEST = 1e-75, 1e75
_LEAST_STRENGTH, _MOST_TRANSACTIONS = 1e-12, 1e15
# Logarithms of amounts up to 2**53, and places of numbers on their axes, in cells.
_LOG_AMOUNT, _CELLS = 40.0, 10**6
_MOST_SCALE = 1e30  # of gaps and numbers, themselves within 2**54
_NATS = 1e6


class ContentsError(ValueError):
    """A file of a model does not hold what it must; says which file, what in it, and what was expected."""


class _Part:
    """Arrays and numbers of one file, by name."""

    def __init__(self, file: str, values: Mapping[str, Any]) -> None:
        self.file, self.values = file, values

    def fault(self, name: str, expected: str) -> ContentsError:
        """The error for an array or a number that is not as expected."""
        return ContentsError(f"{self.file}: {name}: expected {expected}")

    def require(self, good: bool, name: str, expected: str) -> None:
        """Something that an array or a number must be."""
        if not good:
            raise self.fault(name, expected)

    def length(self, name: str) -> int:
        """Length of an array that others have to match."""
        value = self.values.get(name)
        self.require(isinstance(value, np.ndarray) and value.ndim == 1, name, "an array of one dimension")
        return len(self.values[name])

    def array(
        self,
        name: str,
        kind: type[np.number[Any]],
        shape: tuple[int, ...],
        least: float | None = None,
        most: float | None = None,
    ) -> AnyArray:
        """An array of this kind and shape, all of it within these bounds; of finite numbers in any case."""
        array = self.values.get(name)
        if not isinstance(array, np.ndarray) or array.dtype != kind or array.shape != shape:
            found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else _short(array)
            raise self.fault(name, f"an array {np.dtype(kind)} {shape}, got {found}")
        self.require(array.flags.aligned and array.flags.c_contiguous, name, "numbers that lie as they are read")
        limits: Any = np.finfo(kind) if issubclass(kind, np.floating) else np.iinfo(kind)
        low, high = limits.min if least is None else least, limits.max if most is None else most
        if array.size:  # NaN is within no bounds
            lowest, highest = array.min(), array.max()
            if not (low <= lowest and highest <= high):
                raise self.fault(name, f"numbers from {low} to {high}, got {lowest} to {highest}")
        return array

    def starts(self, name: str, parts: int, total: int, of: str, *, filled: bool = False) -> AnyArray:
        """Where each of several parts of another array begins, and the last one ends."""
        start = self.array(name, np.int64, (parts + 1,), 0, total)
        steps = np.diff(start)
        rising = bool((steps > 0).all() if filled else (steps >= 0).all())
        whole = rising and bool(start[0] == 0 and start[-1] == total)
        self.require(whole, name, f"rising places from 0 to {total}, the length of {of}")
        return start

    def rising(self, name: str, keys: AnyArray, start: AnyArray | None = None) -> None:
        """Keys that are searched by halves: each above the one before it, in each part."""
        risen = np.append(keys[1:] > keys[:-1], True)
        if start is not None:  # where a part ends, the next one begins anew
            risen[start[1:-1] - 1] = True
        where = "" if start is None else ", in each part"
        self.require(bool(risen.all()), name, f"each to be above the one before it{where}")

    def masses(self, name: str, parts: int, start: AnyArray, weight: AnyArray) -> AnyArray:
        """Check the sums of the weights of each part."""
        mass = self.array(name, np.float64, (parts,), 0.0, _MOST_TRANSACTIONS)
        sums = np.bincount(np.repeat(np.arange(parts), np.diff(start)), weight, parts)
        self.require(np.allclose(mass, sums, rtol=1e-6, atol=1e-9), name, "the sum of the weights of each law")
        return mass

    def number(self, name: str, least: float, most: float) -> None:
        """A number within these bounds."""
        value = self.values.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise self.fault(name, f"a number from {least:g} to {most:g}, got {_short(value)}")

    def whole(self, name: str, least: int, most: int) -> None:
        """A whole number within these bounds."""
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.fault(name, f"a whole number from {least} to {most}, got {_short(value)}")


def read_part(file: str, content: pa.Buffer, described: Any) -> dict[str, Any]:
    """Arrays of a file, lying in its bytes, and the numbers that go with them."""
    part = _Part(_DESCRIPTION, {file: described})
    good = isinstance(described, dict) and all(isinstance(described.get(n), dict) for n in ("values", "shapes"))
    part.require(good, file, "the values and shapes of its parts")
    shapes, values = described["shapes"], dict(described["values"])
    table = _table(file, content)
    part = _Part(file, {})
    part.require(sorted(table.column_names) == sorted(shapes), "columns", f"{', '.join(sorted(shapes))}")
    for name in table.column_names:
        column, shape = table[name], shapes[name]
        one = len(column) == column.num_chunks == 1 and pa.types.is_large_list(column.type) and not column.null_count
        part.require(one, name, "one row that is a list")
        if not isinstance(shape, list) or not all(type(length) is int and length >= 0 for length in shape):
            raise part.fault(name, "a shape of whole numbers")
        flat = column.chunk(0)[0].values
        numbers = pa.types.is_integer(flat.type) or pa.types.is_floating(flat.type)
        part.require(numbers and not flat.null_count, name, "numbers without gaps")
        if len(flat) != math.prod(shape):
            raise part.fault(name, f"as many numbers as its shape {tuple(shape)} has, got {len(flat)}")
        values[name] = flat.to_numpy(zero_copy_only=True).reshape(shape)
    return values


def read_names(content: pa.Buffer) -> dict[int, str]:
    """Names by their codes."""
    table = _plain_table(NAMES, content, {"code": pa.uint32(), "name": pa.binary()})
    codes = table["code"].to_pylist()
    names = dict(zip(codes, _texts(table["name"]), strict=True))
    _Part(NAMES, {}).require(len(names) == len(codes), "code", "a code of its own for each name")
    return names


def read_accounts(content: pa.Buffer) -> tuple[str, ...]:
    """Whom a model was fitted on."""
    return _texts(_plain_table(ACCOUNTS, content, {"account": pa.binary()})["account"])


def check_description(described: Mapping[str, Any]) -> None:
    """Check what ``model.json`` says besides the contents of other files; also for those who read nothing else."""
    part = _Part(_DESCRIPTION, described)
    for name in ("settings", "facts", "calendar", "tails", "files"):
        part.require(
            isinstance(described.get(name), dict), name, f"names with values, got {_short(described.get(name))}"
        )
    part.require(isinstance(described.get("fingerprint"), str), "fingerprint", "a text")
    part.number("threshold", -_HUGE, _HUGE)
    part.number("sigma_y", _NARROWEST, _WIDEST)
    part.number("takeover_share", 0.0, 1.0)
    facts = described["facts"]
    _check_facts("facts", facts, ("accounts", "transactions", "library_windows"), ("first_time", "last_time"))
    for name in ("lessons", "adapted"):
        said = facts.get(name, {})
        part.require(isinstance(said, dict), f"facts {name}", f"names with values, got {_short(said)}")
        counts = ("number", "frauds", "others", "weighed_at") if name == "lessons" else ("times", "transactions")
        _check_facts(f"facts {name}", said, counts, ("moment", "until"))
    shares = facts.get("lessons", {}).get("shares", [])
    numbers = isinstance(shares, list) and all(isinstance(s, float) and 0.0 <= s <= _NATS for s in shares)
    rising = numbers and all(a <= b for a, b in pairwise(shares))
    part.require(rising, "facts lessons: shares", f"rising numbers of nats, got {_short(shares)}")
    part.require("library_windows" in facts, "facts", "the number of library_windows")


def _check_facts(where: str, said: Mapping[str, Any], counts: tuple[str, ...], numbers: tuple[str, ...]) -> None:
    """Facts may hold anything; those that the program reads must be numbers."""
    part = _Part(f"{_DESCRIPTION}: {where}", said)
    for name in said.keys() & set(counts):
        part.whole(name, 0, 2**53)
    for name in said.keys() & set(numbers):
        part.number(name, -(2.0**53), 2.0**53)


def check_tail(name: str, tail: Tail) -> None:
    """The rates of one score."""
    part = _Part(f"{_DESCRIPTION}: tails: {name}", tail._asdict())
    count = part.length("knots")
    part.require(count >= 2, "knots", f"at least 2 of them, got {count}")
    knots = part.array("knots", np.float64, (count,), -_HUGE, _HUGE)
    part.rising("knots", knots)
    rarity = part.array("rarity", np.float64, (count,), 0.0, _NATS)
    part.require(bool((np.diff(rarity) >= 0).all()), "rarity", "none to be below the one before it")
    part.number("beyond", float(rarity[-1]), _NATS)
    part.number("shape", 0.0, 1.0)
    part.number("scale", _TINY, _HUGE)


def check_index(values: Mapping[str, Any], settings: Settings, sigma_y: float) -> None:
    """Check the library of windows: what a model stores of an index."""
    part = _Part(WINDOWS, values)
    rows, groups = part.length("y"), part.length("log_prior")
    part.array("z", np.float32, (rows, settings.window))
    # Beyond, features for them would be absurd: a fit refuses such windows as well.
    part.array("y", np.float64, (rows,), 0.0, WIDEST_CHANGE * sigma_y)
    part.array("regime", np.int8, (rows,), 0, REGIME_COUNT - 1)
    part.starts("start", groups, rows, "z", filled=True)
    category, merchant = (part.array(name, np.uint32, (groups,)) for name in ("category", "merchant"))
    part.rising("category, merchant", (category.astype(np.uint64) << np.uint64(32)) | merchant)
    part.array("log_prior", np.float64, (groups,), -_NATS, _NATS)
    part.number("sigma_x", _NARROWEST, _WIDEST)
    for name in ("log_rho_category", "log_rho_merchant"):
        part.number(name, -100.0, 100.0)
    part.whole("neighbours", min(rows, 1), rows)


def check_laws(values: Mapping[str, Any], settings: Settings, calendar: Calendar) -> None:
    """Check the densities of normal transactions."""
    part = _Part(LAWS, values)
    _check_amounts(part)
    _check_times(part, calendar)
    _check_fields(part, settings)
    part.array("tells", np.float64, (terms := len(density_terms(settings.declared)),), 0.0, 1.0)
    part.require(bool(np.isin(values["tells"], (0.0, 1.0)).all()), "tells", f"{terms} numbers, each 0 or 1")
    names = ("category_strength", "merchant_strength", "place_strength", "own_place_strength", "usual_strength")
    for name in (*names, "own_hour_strength"):
        part.number(name, _LEAST_STRENGTH, _MOST_TRANSACTIONS)
    part.number("usual_share", 0.0, 1.0)
    part.number("floor", 1e-12, 1.0)
    part.number("amount_scale", 0.0, _LOG_AMOUNT)
    part.number("settled", 0.0, _MOST_TRANSACTIONS)
    for name in ("departure", "amount_departure"):
        part.number(name, 1e-9, 1.0 - 1e-9)


def _check_amounts(part: _Part) -> None:
    known, pairs = part.length("categories"), part.length("pairs")
    categories = part.array("categories", np.uint64, (known,), 0, _CODE)
    keys = part.array("pairs", np.uint64, (pairs,))
    part.rising("categories", categories)
    part.rising("pairs", keys)
    part.require(bool(np.isin(keys >> np.uint64(32), categories).all()), "pairs", "pairs of known categories")
    count = 1 + known + pairs
    mass = _check_densities(part, "amount", count)
    part.require(bool(mass[0] > 0.0), "amount_mass", "transactions to have learnt from")
    part.array("amount_kernel", np.float64, (max(part.length("amount_kernel"), 1),), 0.0, 1e6)
    part.array("merchants", np.float64, (known,), 1.0, 1.0 + pairs)
    part.array("center", np.float64, (known + 1,), 0.0, _LOG_AMOUNT)
    usual = part.length("usual_cells")
    part.rising("usual_cells", part.array("usual_cells", np.int64, (usual,), -_CELLS, _CELLS))
    part.array("usual_weight", np.float64, (usual,), 0.0, 1.0 + 1e-6)
    part.array("usual_kernel", np.float64, (max(part.length("usual_kernel"), 1),), 0.0, 1e6)


def _check_densities(part: _Part, name: str, count: int) -> AnyArray:
    """Check densities on an axis, one after the other; returns their masses."""
    cells = part.length(f"{name}_cells")
    start = part.starts(f"{name}_start", count, cells, f"{name}_cells")
    part.rising(f"{name}_cells", part.array(f"{name}_cells", np.int64, (cells,), -_CELLS, _CELLS), start)
    weight = part.array(f"{name}_weight", np.float64, (cells,), 0.0, _MOST_TRANSACTIONS)
    return part.masses(f"{name}_mass", count, start, weight)


def _check_times(part: _Part, calendar: Calendar) -> None:
    part.array("hour", np.float64, (QUARTERS,), _TINY, 100.0)
    part.array("weekday", np.float64, (7,), _TINY, 1.0)
    part.array("gaps", np.float64, (RATES, OCTAVES), _TINY, 1.0 + 1e-6)
    part.array("counts", np.float64, (2, RATES, COUNTS), _TINY, 1.0 + 1e-6)
    part.number("gap_scale", LEAST_SCALE, _MOST_SCALE)
    part.number("octaves", 1.0, OCTAVES)
    day = calendar.of_days(1.0) or 0.0
    part.require(part.values.get("day") == day, "day", f"{day:g}, as the calendar has it")
    part.number("day", 0.0, day)
    part.number("day_shift", 0.0, 1.0)
    part.number("week_shift", 0.0, 7.0)


def _check_fields(part: _Part, settings: Settings) -> None:
    """Check densities of declared fields."""
    named = sum(f.kind == "category" for f in settings.declared)
    keys, numbers = part.length("name_keys"), len(settings.declared) - named
    start = part.starts("name_start", named, keys, "name_keys")
    part.rising("name_keys", part.array("name_keys", np.uint64, (keys,), 0, _CODE), start)
    weight = part.array("name_weight", np.float64, (keys,), 0.0, _MOST_TRANSACTIONS)
    part.masses("name_mass", named, start, weight)
    for name in ("name_strength", "name_own"):
        part.array(name, np.float64, (named,), _LEAST_STRENGTH, _MOST_TRANSACTIONS)
    _check_densities(part, "number", numbers)
    kernel = part.values.get("number_kernel")
    reach = kernel.shape[-1] if isinstance(kernel, np.ndarray) and kernel.ndim else 0
    part.array("number_kernel", np.float64, (max(numbers, 1), max(reach, 1)), 0.0, 1e6)
    part.array("number_scale", np.float64, (numbers,), LEAST_SCALE, _MOST_SCALE)
    part.array("number_reach", np.float64, (numbers,), 1.0, 1e6)
    part.array("number_missing", np.float64, (numbers,), 0.0, 1.0)


def check_learnt(values: Mapping[str, Any], settings: Settings) -> None:
    """Check what was learnt from verdicts: sizes are those before learning, except for fraud rates and trees."""
    part, plain = _Part(LEARNT, values), unsupervised(settings.declared, listening=True)
    part.require(values.get("listening") is True, "listening", "true")
    fields, halves = plain.unknown.shape
    codes = part.length("codes")
    start = part.starts("start", fields, codes, "codes")
    part.rising("codes", part.array("codes", np.uint64, (codes,)), start)
    part.array("rates", np.float64, (codes, halves), -1e3, 1e3)
    part.array("unknown", np.float64, (fields, halves), -1e3, 1e3)
    part.array("chosen", np.int64, (fields,), 0, halves - 1)
    for name in ("amount", "hour", "weekday", "gap", "number", "frauds"):
        part.array(name, np.float64, getattr(plain, name).shape, 0.0, _MOST_TRANSACTIONS)
    part.array("weights", np.float64, plain.weights.shape, -_NATS, _NATS)
    part.array("term_of", np.int32, plain.term_of.shape)
    part.require(np.array_equal(values["term_of"], plain.term_of), "term_of", "the term of each input")
    _check_trees(part, len(input_names(settings.declared)))


def _check_trees(part: _Part, inputs: int) -> None:
    """Trees one after the other, each node before those below it: so every path ends, and all together are short."""
    roots, nodes = part.length("roots"), part.length("feature")
    feature = part.array("feature", np.int32, (nodes,), -1, inputs - 1)
    children = [part.array(name, np.int32, (nodes,)) for name in ("left", "right")]
    part.array("threshold", np.float64, (nodes,), -_HUGE, _HUGE)
    part.array("value", np.float64, (nodes,), -_NATS, _NATS)
    root = part.array("roots", np.int32, (roots,), 0, nodes - 1)
    part.rising("roots", root)
    part.require(bool((root[:1] == 0).all()) and bool(roots) == bool(nodes), "roots", "the first node to be a root")
    inner = np.flatnonzero(feature >= 0)
    end = np.append(root, nodes)[np.searchsorted(root, inner, side="right")]  # of the tree that each is in
    for name, child in zip(("left", "right"), children, strict=True):
        below = (child[inner] > inner) & (child[inner] < end)
        part.require(bool(below.all()), name, "places behind each node, in its own tree")


def _table(file: str, content: pa.Buffer) -> pa.Table:
    try:
        with pa.ipc.open_file(content) as reader:
            table = reader.read_all()
        # Lengths that go beyond what is there would be read all the same.
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ContentsError(f"{file}: expected an Arrow file of whole tables: {error}") from error
    return table


def _plain_table(file: str, content: pa.Buffer, wanted: dict[str, pa.DataType]) -> pa.Table:
    """A table of such columns and no others, all of them filled."""
    table = _table(file, content)
    found = dict(zip(table.column_names, table.schema.types, strict=True))
    filled = found == wanted and len(found) == table.num_columns and not any(c.null_count for c in table.columns)
    described = ", ".join(f"{name} ({kind})" for name, kind in wanted.items())
    _Part(file, {}).require(filled, "columns", f"{described}, without gaps")
    return table


def _texts(column: pa.ChunkedArray) -> tuple[str, ...]:
    return tuple(data.decode("utf-8", "surrogatepass") for data in column.to_pylist())


def _short(value: Any) -> str:
    """A value as it may stand in a message."""
    text = repr(value) if isinstance(value, str | float | bool | None) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
