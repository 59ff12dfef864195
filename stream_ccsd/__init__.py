"""Streaming fraud detection with the conditional Cauchy-Schwarz divergence (C-CSD)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream_ccsd.alerts.alert import Alert
    from stream_ccsd.clustering.estimator import DivergenceKMedoids
    from stream_ccsd.engine import Engine
    from stream_ccsd.errors import StreamCcsdError
    from stream_ccsd.fields import Field
    from stream_ccsd.fitting import fit
    from stream_ccsd.learning.learner import Learner
    from stream_ccsd.learning.schedule import Schedule
    from stream_ccsd.model.model import Model
    from stream_ccsd.model.registry import Registry
    from stream_ccsd.result import Result
    from stream_ccsd.settings import Settings
    from stream_ccsd.transaction import Refusal, Schema, Transaction, TransactionError
    from stream_ccsd.verdict import Verdict

__version__ = "0.2.0"

__all__ = [
    "Alert",
    "DivergenceKMedoids",
    "Engine",
    "Field",
    "Learner",
    "Model",
    "Refusal",
    "Registry",
    "Result",
    "Schedule",
    "Schema",
    "Settings",
    "StreamCcsdError",
    "Transaction",
    "TransactionError",
    "Verdict",
    "__version__",
    "fit",
]

# Imported on first use: the command line answers --help without loading compiled code.
_MODULES = {
    "Alert": "alerts.alert",
    "DivergenceKMedoids": "clustering.estimator",
    "Engine": "engine",
    "Field": "fields",
    "Learner": "learning.learner",
    "Model": "model.model",
    "Refusal": "transaction",
    "Registry": "model.registry",
    "Result": "result",
    "Schedule": "learning.schedule",
    "Schema": "transaction",
    "Settings": "settings",
    "StreamCcsdError": "errors",
    "Transaction": "transaction",
    "TransactionError": "transaction",
    "Verdict": "verdict",
    "fit": "fitting",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
