"""Offline work on the engine's own core: evaluations and benchmarks. Imports ``stream_ccsd``, never the reverse."""
