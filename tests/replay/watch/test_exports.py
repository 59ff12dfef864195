"""What is on the screen, as files."""

import csv
import io
import json

import pytest

from replay.watch.formats import NotFoundError
from replay.watch.views.exports import TABLES, exported, rows
from tests.replay.watch.fake import Stream, client_of

FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "=cmd|' /C calc'!A0"]
# Each begins a row of its own, unless it is quoted.
LINES = ["a\r=1+1", "a\n=1+1", "a\r\n=1+1", 'a"\r=1']


def read(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.fixture
def stream():
    made = Stream()
    for number, text in enumerate(FORMULAS, start=1):
        made.add(number, merchant=text, amount=-5.0, fields={"country": text, "n": 3}, reasons=[text, "b"])
    return made


def test_csv_runs_no_formula(stream):
    answer = client_of(stream).get("/now.csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="now.csv"'
    found = read(answer.text)
    assert [row["merchant"] for row in found] == [f"'{text}" for text in FORMULAS]
    assert [row["fields.country"] for row in found] == [f"'{text}" for text in FORMULAS]
    assert found[0]["reasons"] == "'=1+1; b"
    assert not [row for row in found if None in row or None in row.values()]
    assert {(row["amount"], row["fields.n"]) for row in found} == {("-5.0", "3")}  # numbers are numbers


def test_a_line_end_in_a_text_begins_no_row(stream):
    stream.alerts = [{"merchant": text, "id": "a"} for text in LINES]
    found = read(client_of(stream).get("/now.csv").text)
    assert [row["merchant"] for row in found] == LINES
    assert {row["id"] for row in found} == {"a"}


def test_json_is_exact(stream):
    stream.rows = [{"x": float("inf")}]
    answer = client_of(stream).get("/now.json")
    assert answer.headers["content-disposition"] == 'attachment; filename="now.json"'
    values = json.loads(answer.text, parse_constant=pytest.fail)
    assert [row["merchant"] for row in values["newest"]] == FORMULAS
    assert values["rows"] == [{"x": None}]


def test_every_view_and_table_is_there(stream):
    client = client_of(stream)
    for name, tables in TABLES.items():
        for table in tables:
            assert client.get(f"/{name}.csv", params={"table": table}).status_code == 200
        assert client.get(f"/{name}.json", params={"by": "loss"}).json()["rows_"][-1] in ("loss", "all")
        assert client.get(f"/{name}.csv", params={"table": "none"}).status_code == 404
        assert client.get(f"/{name}.json", headers={"Accept": "text/html"}).status_code == 200
    assert client.get("/account.json?alert=none").status_code == 404


def test_a_queue_is_a_row_each_alert_and_an_account_has_its_timeline():
    case = {"alerts": [{"id": "a"}, {"id": "b"}], "claim": {"who": "ann"}, "reasons": ["x", "y"]}
    columns, found = rows("queue", {"cases": [case, {"alerts": [{"id": "c", "more": [1]}]}]})
    assert columns == ["id", "case_claim.who", "case_reasons", "more", "case_claim"]
    assert [row["id"] for row in found] == ["a", "b", "c"]
    assert found[1]["case_reasons"] == "x; y"
    assert found[2]["more"] == "[1]"
    assert rows("account", {"timeline": {"points": [{"position": 1}]}}, "timeline") == (["position"], [{"position": 1}])
    assert rows("account", {"timeline": None}, "timeline") == ([], [])
    with pytest.raises(NotFoundError):
        exported("queue", {}, "csv", "entries")
