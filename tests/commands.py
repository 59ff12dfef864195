"""The command line in a process of its own, as a person starts it."""

RUN = "import sys; from stream_ccsd.__main__ import run; sys.argv[0] = 'stream-ccsd'; run()"
