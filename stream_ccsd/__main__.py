"""``python -m stream_ccsd`` is ``stream-ccsd``."""

from stream_ccsd.cli.main import run

run()
