"""Small boosted trees on all features of a transaction, on top of the weighted terms.

LightGBM grows them. It starts from given log odds (the weighted sum, so that trees only say what it cannot), takes
weights of rows, and repeats itself to the bit. Here the trees become plain arrays that compiled code walks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.numerics.arrays import AnyArray, FloatArray

_GROWTH = {
    "objective": "binary",
    "num_leaves": 8,
    "learning_rate": 0.1,
    "min_data_in_leaf": 5,
    "min_sum_hessian_in_leaf": 1e-3,
    "lambda_l2": 5.0,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "max_bin": 63,
    "boost_from_average": False,
    "seed": 1,
    # The same rows give the same trees, on any number of cores.
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbose": -1,
}
_TREES = 60


class Trees(NamedTuple):
    """Node after node, as in :class:`~stream_ccsd.evidence.supervised.Supervised`."""

    roots: AnyArray
    feature: AnyArray
    threshold: FloatArray
    left: AnyArray
    right: AnyArray
    value: FloatArray


NO_TREES = Trees(
    *(np.zeros(0, kind) for kind in (np.int32, np.int32, np.float64, np.int32, np.int32, np.float64))  # type: ignore[arg-type]
)


def grow_trees(inputs: AnyArray, odds: FloatArray, fraud: AnyArray, weight: FloatArray) -> Trees:
    """Trees that correct these log odds."""
    lightgbm = _lightgbm()
    settings = {"max_bin": _GROWTH["max_bin"], "verbose": -1, "feature_pre_filter": False}
    rows = lightgbm.Dataset(inputs, fraud.astype(float), weight=weight, init_score=odds, params=settings)
    grown = lightgbm.train(_GROWTH, rows, num_boost_round=_TREES)
    roots: list[int] = []
    nodes: list[tuple[int, float, int, int, float]] = []
    for tree in grown.dump_model()["tree_info"]:
        if "split_index" in tree["tree_structure"]:  # a tree that is one leaf adds nothing
            roots.append(len(nodes))
            _lay_out(tree["tree_structure"], nodes)
    columns = list(zip(*nodes, strict=True)) if nodes else [()] * 5
    kinds = (np.int32, np.float64, np.int32, np.int32, np.float64)
    return Trees(np.array(roots, np.int32), *(np.array(c, k) for c, k in zip(columns, kinds, strict=True)))


def _lay_out(node: dict[str, Any], nodes: list[tuple[int, float, int, int, float]]) -> int:
    """Append a node and all below it; returns its place."""
    place = len(nodes)
    if "split_index" not in node:
        nodes.append((-1, 0.0, -1, -1, float(node["leaf_value"])))
        return place
    nodes.append((0, 0.0, 0, 0, 0.0))
    left, right = (_lay_out(node[side], nodes) for side in ("left_child", "right_child"))
    nodes[place] = (int(node["split_feature"]), float(node["threshold"]), left, right, float(node["internal_value"]))
    return place


def _lightgbm() -> Any:
    try:
        import lightgbm
    except (ImportError, OSError) as error:  # OSError: the library it needs of the system
        raise StreamCcsdError(
            f"lessons grow trees with LightGBM, which cannot be loaded here: {error}. Install the package's "
            "dependencies again; on a small system, also its OpenMP library (Debian: libgomp1)"
        ) from error
    return lightgbm
