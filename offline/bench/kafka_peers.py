"""What the workers are measured beside, each in a process of its own: prints messages a second."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid


class _Clock:
    """From the first message to the last."""

    def __init__(self, count: int) -> None:
        self._wanted, self._seen, self._begun = count, 0, 0.0

    def note(self) -> None:
        """One message more; ends the process with the last."""
        if not self._seen:
            self._begun = time.perf_counter()
        self._seen += 1
        if self._seen == self._wanted:
            os.write(1, f"\n{self._wanted / (time.perf_counter() - self._begun)}\n".encode())
            os._exit(0)


def bare_faust(brokers: str, topic: str, count: int) -> None:
    """An agent that reads each message and does nothing: Faust's own cost."""
    import faust

    folder = tempfile.mkdtemp()
    app = faust.App(uuid.uuid4().hex, broker=f"kafka://{brokers}", web_enabled=False, datadir=folder)
    clock = _Clock(count)

    @app.agent(app.topic(topic, key_type=bytes, value_type=bytes))
    async def read(stream: faust.Stream) -> None:
        async for _ in stream.events():
            clock.note()

    faust.Worker(app, loglevel="error", quiet=True).execute_from_commandline()


def quix(brokers: str, topic: str, count: int) -> None:
    """A count by key, kept in RocksDB and a changelog, written to a topic."""
    from quixstreams import Application, State

    app = Application(
        broker_address=brokers,
        consumer_group=uuid.uuid4().hex,
        auto_offset_reset="earliest",
        state_dir=tempfile.mkdtemp(),
        loglevel="ERROR",
    )
    clock = _Clock(count)

    def counted(value: object, state: State[str, int]) -> dict[str, int]:
        number = (state.get("count") or 0) + 1
        state.set("count", number)
        return {"count": number}

    frame = app.dataframe(app.topic(topic, key_deserializer="str", value_deserializer="json"))
    frame = frame.apply(counted, stateful=True).to_topic(app.topic(f"{topic}-counts", value_serializer="json"))
    frame.update(lambda value: clock.note())
    app.run()


if __name__ == "__main__":
    {"faust": bare_faust, "quix": quix}[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))
