"""Streaming fraud detection with the conditional Cauchy-Schwarz divergence (C-CSD)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream_ccsd.clustering.estimator import DivergenceKMedoids
    from stream_ccsd.engine import Engine
    from stream_ccsd.errors import StreamCcsdError
    from stream_ccsd.fitting import fit
    from stream_ccsd.model.model import Model
    from stream_ccsd.result import Result
    from stream_ccsd.settings import Settings
    from stream_ccsd.transaction import Refusal, Schema, Transaction, TransactionError

__version__ = "0.2.0"

__all__ = [
    "DivergenceKMedoids",
    "Engine",
    "Model",
    "Refusal",
    "Result",
    "Schema",
    "Settings",
    "StreamCcsdError",
    "Transaction",
    "TransactionError",
    "__version__",
    "fit",
]

# Imported on first use: the command line answers --help without loading compiled code.
_HOME = {
    "DivergenceKMedoids": "clustering.estimator",
    "Engine": "engine",
    "Result": "result",
    "StreamCcsdError": "errors",
    "fit": "fitting",
    "Model": "model.model",
    "Settings": "settings",
    "Refusal": "transaction",
    "Schema": "transaction",
    "Transaction": "transaction",
    "TransactionError": "transaction",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
