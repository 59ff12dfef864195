"""Densities that forget keep their mass: it moves to other values."""

from dataclasses import replace

import numpy as np
import pytest

from stream_ccsd.evidence.densities import EVERYTHING
from stream_ccsd.learning.adaptation import adapted
from stream_ccsd.learning.features import Features


def test_laws_that_forget_a_merchant_keep_their_mass(calm, calm_model):
    """Everybody goes to one shop: what little is left of the others' weight is given to what is there."""
    moved = [replace(r, transaction=replace(r.transaction, category="drones", merchant="sky")) for r in calm[:2000]]
    rows = Features.of(moved, calm_model)
    model = calm_model
    for _ in range(12):
        before, model = model.laws, adapted(model, rows, 0.5)
        came = min(0.5 * before.amount_mass[EVERYTHING] / len(rows), 1.0) * len(rows)
        expected = 0.5 * before.amount_mass[EVERYTHING] + came
        assert model.laws.amount_mass[EVERYTHING] == pytest.approx(expected, rel=1e-9)
        assert np.all(model.laws.name_mass == pytest.approx(0.5 * before.name_mass + came, rel=0.05))
    assert len(model.laws.pairs) == 1 < len(calm_model.laws.pairs)
