"""Times as people see them: units, dates, lengths; recognised at a fit, kept by the model, chosen by settings."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_ccsd.calendar import UNITS, Calendar, CalendarError, alert_moment, plain_number, show_alert_time
from stream_ccsd.engine import Engine
from stream_ccsd.fitting import fit
from stream_ccsd.model.model import Model, ModelError
from stream_ccsd.settings import Settings, SettingsError
from stream_ccsd.transaction import MAX_NUMBER, Transaction
from tests.conftest import SMALL

TIMES = st.floats(-MAX_NUMBER, MAX_NUMBER)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))])
ORIGINS = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=ZONES)
CALENDARS = st.one_of(
    st.builds(Calendar, st.sampled_from(UNITS)), st.builds(Calendar, st.sampled_from(UNITS[:3]), ORIGINS)
)


@given(CALENDARS, TIMES)
def test_every_time_can_be_shown_and_no_exponent_appears(calendar, time):
    shown = calendar.show(time)
    assert shown
    assert "e" not in shown
    assert "e+" not in calendar.length(abs(time))
    assert (calendar.iso(time) is None) == (calendar.moment(time) is None)
    assert show_alert_time({"when": calendar.iso(time), "time": time})


@given(st.sampled_from(UNITS[:3]), ORIGINS, st.integers(-(10**6), 10**6))
def test_a_date_and_its_time_are_the_same_moment(unit, origin, days):
    calendar = Calendar(unit, origin)
    moment = origin + timedelta(days=days // 100, seconds=days % 86400)
    time = calendar.time_of(moment)
    assert abs(calendar.moment(time) - moment) < timedelta(milliseconds=1)
    assert abs(alert_moment({"when": calendar.iso(time)}) - moment) < timedelta(milliseconds=1)


@given(CALENDARS)
def test_a_calendar_survives_json(calendar):
    assert Calendar.from_dict(json.loads(json.dumps(calendar.to_dict()))) == calendar


@given(st.floats(1e-9, 1e15))
def test_plain_numbers_stay_what_they_are(value):
    assert math.isclose(float(plain_number(value)), value, rel_tol=5e-3)


@pytest.mark.parametrize(
    ("times", "unit", "shown"),
    [
        ([1546310400.0, 1577836800.0], "seconds", "2019-01-01 02:40"),
        ([1546310400000.0], "milliseconds", "2019-01-01 02:40"),
        ([0.0, 1546310400.0], "number", "0"),  # a stream that begins at 0 does not begin in 1970
        ([1546310400.0, 1e15], "number", "1546310400"),
        ([], "number", None),
    ],
)
def test_epochs_are_recognised(times, unit, shown):
    calendar = Calendar.recognise(times)
    assert calendar.unit == unit
    assert shown is None or calendar.show(times[0]) == shown


def test_what_settings_say_goes_before_what_is_recognised():
    assert Calendar.choose("seconds", None, [1546310400.0]).show(1546310400.0) == "2019-01-01 02:40"
    assert Calendar.choose("number", None, [1546310400.0]) == Calendar()
    unknown = Calendar.choose("days", None, [17.0])
    assert (unknown.show(17.0), unknown.length(17.0), unknown.axis_label(True)) == ("17", "17 days", "time, days")
    local = Calendar.choose("days", "2018-04-01T00:00+02:00", [17.0])
    assert local.iso(17.5) == "2018-04-18T12:00:00+02:00"
    assert (local.show(17.0), local.show(17.5)) == ("2018-04-18", "2018-04-18 12:00")
    with pytest.raises(CalendarError, match=r"no dates.*time_origin"):
        unknown.time_of(datetime(2018, 4, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"time_unit": "hours"}, "time_unit is 'hours', expected one of"),
        ({"time_unit": "seconds", "time_origin": "yesterday"}, "time_origin: expected a date"),
        ({"time_unit": "seconds", "time_origin": 2018}, "time_origin: expected a date"),
        ({"time_origin": "2018-04-01"}, "time_unit is None"),
        ({"time_unit": "number", "time_origin": "2018-04-01"}, "time_unit is 'number'"),
        ({"time_unit": ["days"]}, "time_unit"),
    ],
)
def test_settings_that_mean_nothing(values, message):
    with pytest.raises(SettingsError, match=message):
        Settings.from_dict(values)


def test_a_model_knows_its_calendar_and_alerts_are_dated(tmp_path):
    start = 1522540800.0
    transactions = [
        Transaction(f"c{a}", start + 3600 * i, 20.0 + i, "food", f"m{i % 3}", f"{a}-{i}")
        for a in range(4)
        for i in range(30)
    ]
    model = fit(transactions, SMALL)
    loaded = Model.load(model.save(tmp_path / "m"))
    assert loaded.calendar == model.calendar == Calendar("seconds", datetime(1970, 1, 1, tzinfo=UTC))
    engine = Engine(loaded, threshold=0.0)
    first, late = engine.process_many(
        [
            Transaction("new", start + 86400.0, 9e5, "food", "m1", "1"),
            Transaction("new", start, 5.0, "food", "m1", "2"),
        ]
    )
    assert first.alert.when == "2018-04-02T00:00:00+00:00"
    assert "2018-04-01 00:00 lies 1 day behind the account's newest (2018-04-02 00:00)" in late.reason
    other = fit(transactions, replace(SMALL, time_unit="number"))
    assert other.version != model.version
    assert Engine(other, threshold=0.0).process(first.transaction).alert.when is None


@pytest.mark.parametrize(
    "calendar",
    [None, {}, {"unit": "weeks", "origin": None}, {"unit": "days", "origin": "soon"}, {"unit": [], "origin": 1}],
)
def test_a_model_with_a_broken_calendar_is_refused(model, tmp_path, calendar):
    place = model.save(tmp_path / "m")
    described = json.loads((place / "model.json").read_text())
    (place / "model.json").write_text(json.dumps({**described, "calendar": calendar}))
    with pytest.raises(ModelError, match="not a complete model"):
        Model.load(place)
