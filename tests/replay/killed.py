"""Commands in processes that are forked when everything is imported and compiled: many starts cost what one does.

Reads lists of arguments, a line of JSON each; says the process's id, then what became of it. Nothing here may use
LightGBM before the fork: its threads would not be there behind it.
"""

import json
import os
import sys
from pathlib import Path

import lightgbm  # noqa: F401

from replay.run.session import Session
from replay.sources.source import ListSource
from stream_ccsd.__main__ import run
from stream_ccsd.model.model import Model
from stream_ccsd.transaction import Transaction


def main(model_folder: str, folder: str) -> None:
    model = Model.load(model_folder)
    first = [Transaction(name, model.facts["last_time"], 5.0, "c", "m", name) for name in "ab"]
    Session(ListSource("warm", first), model, Path(folder)).run()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            sys.argv = ["stream-ccsd", *json.loads(line)]
            run()
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
