"""Terms of the evidence as the records hold them, objects of JSON with four digits, for a whole batch at once.

The same texts, to the character, as of ``json`` and ``round`` a row: most of what it takes to record a transaction
would be to round and write out its terms.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stream_ccsd.numeric import AnyArray, FloatArray

_DIGITS = 4
# Up to here, a product with 10**4 is exact to a millionth, and Arrow writes out a quotient as Python does.
_LARGE = 1e5
# Products this close to a half may be on its other side.
_NEAR = 1e-5


def rounded(values: FloatArray) -> FloatArray:
    """Each as Python rounds it: by its exact value, where numpy rounds a product that is rounded itself."""
    with np.errstate(all="ignore"):
        scaled = np.abs(values) * 10.0**_DIGITS
        doubtful = ~(np.abs(scaled - np.floor(scaled) - 0.5) > _NEAR) | ~(np.abs(values) < _LARGE)
        result: AnyArray = np.round(values, _DIGITS)
    result[doubtful] = [round(value, _DIGITS) for value in values[doubtful].tolist()]
    return result


def term_texts(names: Sequence[str], values: FloatArray) -> pa.Array:
    """An object a row of ``values``, without terms that are 0; ``names`` are those of its columns."""
    digits = rounded(values)
    rows, columns = np.nonzero(digits)
    numbers = digits[rows, columns]
    texts = pc.cast(pa.array(numbers), pa.string())
    # Whole numbers, which Python writes with a point, and what no evidence should be.
    odd = ~(np.abs(numbers) < _LARGE) | (numbers == np.trunc(numbers))
    if odd.any():
        texts = pc.replace_with_mask(texts, odd, pa.array([json.dumps(n) for n in numbers[odd].tolist()], pa.string()))
    keys = pa.array([json.dumps(name) + ":" for name in names], pa.string())
    parts = pc.binary_join_element_wise(keys.take(pa.array(columns)), texts, "")
    ends = np.searchsorted(rows, np.arange(len(values) + 1)).astype(np.int32)
    return pc.binary_join_element_wise("{", pc.binary_join(pa.ListArray.from_arrays(ends, parts), ","), "}", "")
