"""The README is a promise: its example runs, its commands exist, CI runs its test command to the letter."""

import re
from pathlib import Path

from typer.testing import CliRunner

from stream_ccsd.cli.main import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_ci_runs_the_command_of_the_readme():
    assert blocks("bash")[1].strip() in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "normal transactions score this high" in printed
    assert "nats" in printed
    assert (tmp_path / "model" / "model.json").is_file()


def test_every_command_exists():
    commands = set(re.findall(r"`stream-ccsd ((?:[a-z]+ ?)+)", README)) | {"replay"}
    assert len(commands) >= 3
    for command in commands:
        result = CliRunner().invoke(app, [*command.split(), "--help"])
        assert result.exit_code == 0, command


def test_every_room_exists():
    rooms = re.findall(r"^\| `([^|]+?)` *\|", README, flags=re.MULTILINE)
    assert len(rooms) > 8
    for line in rooms:
        for room in line.replace("`", "").split(", "):
            assert (ROOT / room).exists() or (ROOT / "stream_ccsd" / room).exists(), room
