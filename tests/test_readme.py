"""READMEs are promises: their examples run, their commands, options, packages and links exist, the first is short."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stream_ccsd import __version__
from stream_ccsd.account import RECENT
from stream_ccsd.cli.main import app

ROOT = Path(__file__).parent.parent
ROOMS = ("stream_ccsd", "replay", "replay/watch", "offline", "deploy")
PAGES = sorted(
    {*ROOT.glob("*.md"), *(p for room in ROOMS for p in (ROOT / room).glob("*.md")), *ROOT.glob(".github/*.md")}
)
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
README = TEXTS["README.md"]
# Options in prose that are another program's: docker compose's.
FOREIGN = {"--profile"}
# What the examples of a page print.
SAID = {
    "README.md": ("normal transactions score this high", " nats "),
    "stream_ccsd/README.md": ("time malformed time: expected", "lessons: "),
}


def blocks(text: str, *languages: str) -> list[str]:
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def inline(text: str) -> list[str]:
    """Code within sentences, with a line's end inside of it as a space."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]


def commands(text: str) -> list[str]:
    """Whatever a reader could type behind ``stream-ccsd``."""
    lines = [line.partition("  #")[0] for block in blocks(text, "console", "bash") for line in block.splitlines()]
    typed = [part for line in lines for part in re.split(r"&&|&|\|\|", line)]
    known = r"(?:^|/|\s)stream-ccsd ((?!…).+)"
    table = re.findall(r"^\|.*\| `((?:evaluate|bench|replay) [^`]+)` \|$", text, flags=re.MULTILINE)
    return [m[1] for code in [*typed, *inline(text)] if (m := re.search(known, code.strip()))] + table


def help_of(words: tuple[str, ...]) -> str:
    if words not in _HELP:
        result = CliRunner().invoke(app, [*words, "--help"])
        assert result.exit_code == 0, f"no command {' '.join(words)}: {result.output}"
        _HELP[words] = result.output
    return _HELP[words]


_HELP: dict[tuple[str, ...], str] = {}


def options(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def options_below(words: tuple[str, ...]) -> set[str]:
    """Of a command and, where it is a group, of all its commands."""
    text, _, listed = help_of(words).partition("\nCommands:\n")
    below = re.findall(r"^  ([a-z]+) ", listed, flags=re.MULTILINE)
    return options(text).union(*(options_below((*words, name)) for name in below))


def slug(heading: str) -> str:
    """The anchor that a heading has on a rendered page."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_pages_are_all_there():
    wanted = {"README.md", "CHANGELOG.md", ".github/CONTRIBUTING.md"}
    wanted |= {"offline/RESULTS.md", "offline/NOTES.md", "replay/VERDICTS.md"}
    assert wanted | {f"{room}/README.md" for room in ROOMS} == set(TEXTS)
    found = {str(place.parent.relative_to(ROOT)) for place in ROOT.glob("[!.]*/**/README.md")}
    assert found == set(ROOMS)


def test_people_finish_the_first():
    assert len(README.splitlines()) <= 120


def test_ci_runs_the_command_of_the_readme():
    assert blocks(README, "bash")[1].strip() in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [name for name, text in TEXTS.items() if blocks(text, "python")])
def test_the_examples_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for block in blocks(TEXTS[page], "python"):
        exec(compile(block, page, "exec"), {})
    printed = capsys.readouterr().out
    for said in SAID[page]:
        assert said in printed
    assert list(tmp_path.glob("*/model.json"))


@pytest.mark.parametrize("page", TEXTS)
def test_every_command_exists_with_its_options(page):
    for command in commands(TEXTS[page]):
        words = re.match(r"(?:[a-z]+(?: |$))*", command)[0].split()
        missing = options(command) - options(help_of(tuple(words)))
        assert not missing, f"{page}: stream-ccsd {command}"


def test_commands_are_found_where_readers_find_them():
    """So that the test above cannot pass by finding none."""
    found = {" ".join(c.split()[:2]) if c.startswith(("bench", "evaluate")) else c.split()[0] for c in commands(README)}
    assert found >= {"fit", "replay", "alerts", "explain", "worker", "evaluate fraud", "evaluate clustering"}
    assert found >= {f"bench {name}" for name in ("engine", "replay", "kafka")}
    assert commands("`stream-ccsd nothing --at-all`") == ["nothing --at-all"]
    assert {"--resume", "--beginning", "--guarantee", "--published", "--sizes", "--debug"} <= options_below(())


def test_every_option_in_a_sentence_is_one_of_some_command():
    known = FOREIGN | options_below(())
    for page, text in TEXTS.items():
        named = {option for code in inline(text) if code.startswith("--") for option in options(code)}
        assert not named - known, page


@pytest.mark.parametrize("page", TEXTS)
def test_every_room_exists(page):
    cells = re.findall(r"^\| (`[^|]+`) *\|", TEXTS[page], flags=re.MULTILINE)
    rooms = [room for cell in cells for room in re.findall(r"`([\w./]+(?:/|\.py))`", cell)]
    for room in rooms:
        assert any((place / room).exists() for place in (ROOT, ROOT / "stream_ccsd", (ROOT / page).parent)), room
    assert page != "README.md" or len(rooms) > 12


def test_every_room_is_on_the_map():
    """Of the engine; the other packages are a line each."""
    maps = README + TEXTS["stream_ccsd/README.md"]
    for place in (ROOT / "stream_ccsd").iterdir():
        if place.suffix == ".py" and not place.name.startswith("__"):
            assert re.search(rf"`(stream_ccsd/)?{place.name}`", maps), place.name
        elif (place / "__init__.py").is_file():
            assert f"`stream_ccsd/{place.name}/`" in maps, place.name


@pytest.mark.parametrize("page", TEXTS)
def test_a_heading_has_a_line_to_itself(page):
    """One that is glued to a block of code is part of it for some renderers."""
    prose = re.sub(r"^```.*?^```", "", TEXTS[page], flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"^.+\n#+ .+$", prose, flags=re.MULTILINE)


def test_the_version_is_the_newest_of_the_changelog():
    newest = re.search(r"^## \[(\d[^]]*)\] - \d{4}-\d\d-\d\d$", TEXTS["CHANGELOG.md"], flags=re.MULTILINE)
    assert newest[1] == __version__
    assert CliRunner().invoke(app, ["--version"]).output == f"{__version__}\n"


def test_numbers_of_the_state_are_those_of_the_code():
    assert f"the account's {RECENT} newest" in TEXTS["stream_ccsd/README.md"]
    assert "(table `lines`," in TEXTS["replay/README.md"]
    assert "CREATE TABLE lines" in (ROOT / "replay" / "cases" / "audit_log.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", TEXTS)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        place = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert place.exists(), target
        assert place.suffix != ".png" or place.stat().st_size < 150_000, "a picture that every clone carries"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", place.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert anchor in map(slug, headings), target
