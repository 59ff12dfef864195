"""Learning replays in a process of their own, whose cores and threads are those it was started with.

``python -m tests.replay.cores FOLDER [CORE]``: with a core, only that one is used. A replay from start to end; then
another is killed, and where one was killed before, it is resumed.
"""

import os
import signal
import sys
from pathlib import Path


def main(folder: Path, core: str | None = None) -> None:
    if core is not None:
        os.sched_setaffinity(0, [int(core)])  # before there are any threads

    import replay.run.session
    from replay.run.fitting import simulated_replay
    from replay.run.learning import Learning
    from replay.run.session import Session
    from stream_ccsd.settings import Settings

    replay.run.session.write_report = lambda *anything: None
    settings = Settings(divergence=False, window=10, local_history=10)
    model, source = simulated_replay(110, 40, 2, settings)

    def session(name: str, resume: bool = False) -> Session:
        learning = Learning(every=5.0, delay=3.0, labels=True, adapt=True)
        (folder / name).mkdir(exist_ok=True)
        return Session(source, model, folder / name / "out", folder / name / "replay.db", resume, learning=learning)

    session("whole" if core is None else f"whole on {core}").run()
    if (folder / "killed").exists():
        session("killed", resume=True).run()
        return
    looks = iter(range(40))

    def dying() -> bool:
        if next(looks, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    session("killed").run(stop=dying, batch=50)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
