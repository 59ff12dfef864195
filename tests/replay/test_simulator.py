"""The simulated population: what stays as it was, and hours, countries and devices as its description says."""

import hashlib
from datetime import datetime

import numpy as np
import pyarrow.parquet as pq
import pytest

from replay.run.fitting import population_settings, write_simulated
from replay.sources.files import read_transactions
from replay.sources.simulator.behaviour import Hours, Rhythm, at_night, country_name, device_name
from replay.sources.simulator.population import (
    DRAIN,
    FIELDS,
    HABIT,
    PATTERNS,
    RARE,
    REGIME,
    TIME_ORIGIN,
    TIME_UNIT,
    Population,
    SimulatedRows,
    simulate,
    simulated,
)
from stream_ccsd.fields import declared
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Schema, unsound


def all_days(population):
    return SimulatedRows(
        *(np.concatenate(column) for column in zip(*map(population.day, range(population.days)), strict=True))
    )


@pytest.fixture(scope="module")
def population():
    return Population(600, 150, fraud_share=0.5, seed=1)


@pytest.fixture(scope="module")
def rows(population):
    return all_days(population)


def hours(rows):
    return rows.time % 1 * 24


def is_weekend(rows):
    return np.floor(rows.time) % 7 >= 5


def digest(population):
    """Of who paid how much to whom, and of what is fraud, whatever the order within a day."""
    whole = hashlib.sha256()
    for number in range(population.days):
        rows = population.day(number)
        columns = (rows.customer, np.rint(rows.amount * 100), rows.merchant, rows.pattern)
        table = np.stack([np.asarray(c, np.int64) for c in columns]).astype("<i8")
        whole.update(table[:, np.lexsort(table)].tobytes("F"))
    return whole.hexdigest()[:16]


# Of the simulator before it had hours, countries and devices.
@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ((300, 120, 0.2, 250, 0), "928cb1e0beda88ab"),
        ((80, 45, 0.9, 60, 7), "6989c0ab0c1cb1ea"),
        ((1000, 9, 0.05, 5000, 3), "669855151a93676b"),
    ],
)
def test_customers_amounts_merchants_and_frauds_of_each_day_are_what_they_were(chosen, expected):
    assert digest(Population(*chosen)) == expected


def test_days_are_the_same_in_any_order_and_in_another_population_of_that_seed(population):
    again = Population(600, 150, fraud_share=0.5, seed=1)
    for number in (149, 3, 70, 59, 60, 3):
        for one, other in zip(again.day(number), population.day(number), strict=True):
            np.testing.assert_array_equal(one, other)
    other = Population(600, 150, fraud_share=0.5, seed=2)
    assert (other.travels.home != population.travels.home).any()
    assert (other.rhythm.kind != population.rhythm.kind).any()


def test_times_are_in_order_and_within_their_day(population):
    for number in range(10):
        time = population.day(number).time
        assert (np.diff(time) >= 0).all()
        assert number <= time.min() <= time.max() < number + 1


def test_an_hour_is_the_inverse_of_the_shares():
    """By the share of chances below each hour, against sums over the hours themselves."""
    chance = (np.arange(20_000) + 0.5) / 20_000
    table = Hours(["groceries", "leisure"])
    people = Rhythm(np.full(len(chance), 2, np.int8), np.zeros(len(chance)))
    for weekend in (False, True):
        found = table.at(chance, people, np.ones(len(chance), np.intp), weekend)
        shares = table._shares[2, 1, int(weekend)]
        counts = np.bincount(found.astype(int), minlength=24) / len(chance)
        np.testing.assert_allclose(counts, shares / shares.sum(), atol=2e-4)
        assert (np.diff(found) > 0).all()
    ends = at_night(np.array([0.0, np.nextafter(1.0, 0.0)]))
    assert ends[0] == 0.0
    assert 23.9 < ends[1] < 24.0


def test_weekends_are_later_than_working_days(rows):
    own, hour, free = rows.pattern < 0, hours(rows), is_weekend(rows)
    morning = (hour >= 5) & (hour < 9)
    assert morning[own & free].mean() < 0.5 * morning[own & ~free].mean()
    small_hours = hour < 4
    assert small_hours[own & free].mean() > 2 * small_hours[own & ~free].mean()
    assert small_hours[own].mean() < 0.05


def test_the_origin_is_a_monday():
    assert datetime.fromisoformat(TIME_ORIGIN).weekday() == 0


def test_customers_have_hours_of_their_own(rows):
    """Mean hours differ by more than what chance makes of one rhythm for all."""
    own = (rows.pattern < 0) & ~is_weekend(rows)
    who, hour = rows.customer[own], hours(rows)[own]
    count = np.maximum(np.bincount(who), 1)
    mean = np.bincount(who, hour) / count
    enough = count >= 50
    by_chance = np.sqrt(hour.var() / count[enough].mean())
    assert mean[enough].std() > 1.5 * by_chance


def test_a_trip_is_some_days_in_one_country_and_most_days_are_at_home(population, rows):
    own = rows.pattern < 0
    is_away = own & (rows.country != population.travels.home[rows.customer])
    assert 0.005 < is_away.mean() < 0.08
    season = np.floor(rows.time / 60).astype(int)
    trips = 0
    for customer, number in set(zip(rows.customer[is_away].tolist(), season[is_away].tolist(), strict=True)):
        mine = own & (rows.customer == customer) & (season == number)
        country, away = rows.country[mine], is_away[mine]
        first, last = np.flatnonzero(away)[[0, -1]]
        assert away[first : last + 1].all()
        assert len(set(country[away].tolist())) == 1
        assert np.ptp(rows.time[mine][away]) <= 15
        trips += 1
    assert trips > 50
    shares = np.bincount(population.travels.home) / len(population.travels.home)
    assert len(shares) == 10
    assert shares[0] > 0.25
    assert shares[-1] < 0.06


def test_customers_use_one_device_now_and_then_a_second_and_rarely_a_new_one():
    """Over ten years, of which each device sees but a few."""
    population = Population(40, 3650, fraud_share=0.0, seed=5)
    days = [population.day(number) for number in range(0, 3650, 5)]
    rows = SimulatedRows(*(np.concatenate(column) for column in zip(*days, strict=True)))
    assert (rows.device < 0).mean() == pytest.approx(0.03, abs=0.005)
    shares = []
    for customer in range(40):
        mine = (rows.customer == customer) & (rows.device >= 0)
        device, time = rows.device[mine], rows.time[mine]
        spans = {number: np.ptp(time[device == number]) for number in set(device.tolist())}
        assert 3 <= len(spans) <= 18
        assert max(spans.values()) < 1300
        in_first_year = np.unique(device[time < 365], return_counts=True)[1]
        shares.append(in_first_year.max() / in_first_year.sum())
    assert np.mean(shares) > 0.6
    assert min(shares) < 0.95


def test_devices_belong_to_one_customer_and_their_names_tell_no_label(rows):
    pairs = set(zip(rows.customer.tolist(), rows.device.tolist(), strict=True))
    known = [pair for pair in pairs if pair[1] >= 0]
    assert len({device_name(*pair) for pair in known}) == len(known)
    assert len({device_name(7, number) for number in range(1000)}) == 1000
    strange = set(rows.device[rows.pattern == REGIME].tolist())
    assert strange <= set(rows.device[rows.pattern < 0].tolist())
    assert len(strange) > 20


def seen_before(population, rows):
    """Whether each transaction's device was used by its customer before the fraud began."""
    earlier = rows.time < population.begin[rows.customer]
    known = set(zip(rows.customer[earlier].tolist(), rows.device[earlier].tolist(), strict=True))
    return np.array([pair in known for pair in zip(rows.customer.tolist(), rows.device.tolist(), strict=True)])


def test_strangers_bring_their_devices_and_drains_run_on_the_customers(population, rows):
    is_known, has_device = seen_before(population, rows), rows.device >= 0
    known = [is_known[has_device & (rows.pattern == pattern)].mean() for pattern in range(len(PATTERNS))]
    assert 0 < known[RARE] < 0.3
    assert 0 < known[HABIT] < 0.3
    assert known[DRAIN] > 0.8
    assert known[REGIME] == 0
    regime = has_device & (rows.pattern == REGIME)
    for customer in set(rows.customer[regime].tolist()):
        assert len(set(rows.device[regime & (rows.customer == customer)].tolist())) == 1


def test_strangers_countries(population, rows):
    is_away = rows.country != population.travels.home[rows.customer]
    shares = [is_away[rows.pattern == pattern].mean() for pattern in range(len(PATTERNS))]
    assert shares[RARE] > 0.6
    assert max(shares[HABIT], shares[DRAIN], shares[REGIME]) < 0.25


def test_strangers_hours(rows):
    at_night = (hours(rows) < 6) | (hours(rows) >= 22)
    for pattern in (RARE, DRAIN):
        assert at_night[rows.pattern == pattern].mean() > 0.5
    for pattern in (-1, HABIT, REGIME):
        assert at_night[rows.pattern == pattern].mean() < 0.25
    for customer in set(rows.customer[rows.pattern == RARE].tolist()):
        burst = rows.time[(rows.pattern == RARE) & (rows.customer == customer)]
        assert np.ptp(burst) * 24 <= 2.01


def test_transactions_carry_what_the_rows_say():
    population = Population(30, 8, fraud_share=0.5, seed=3)
    rows = all_days(population)
    made = [transaction for transaction, _ in simulated(population)]
    assert made == simulate(accounts=30, days=8, fraud_share=0.5, seed=3).transactions
    assert [t.fields["country"] for t in made] == [country_name(c) for c in rows.country.tolist()]
    names = [device_name(*pair) for pair in zip(rows.customer.tolist(), rows.device.tolist(), strict=True)]
    assert [t.fields["device"] for t in made] == names
    assert "" in names
    assert {tuple(t.fields) for t in made} == {tuple(field.name for field in declared(FIELDS))}
    assert not any(map(unsound, made))


@pytest.mark.parametrize("name", ["s.csv", "s.csv.gz", "s.parquet"])
def test_files_carry_countries_and_devices(tmp_path, name):
    population = Population(20, 12, fraud_share=0.5, seed=3)
    count, _ = write_simulated(population, tmp_path / name)
    read = list(read_transactions(tmp_path / name, Schema(fields=declared(FIELDS))))
    assert read == [transaction for transaction, _ in simulated(population)]
    assert len(read) == count
    if name.endswith(".parquet"):
        columns = pq.read_table(tmp_path / name).column_names
        assert columns[-4:] == ["country", "device", "fraud", "pattern"]


def test_a_population_fills_in_settings_that_were_left_open():
    filled = population_settings(Settings())
    assert (filled.fields, filled.time_unit, filled.time_origin) == (FIELDS, TIME_UNIT, TIME_ORIGIN)
    chosen = Settings(fields=("device:category",), time_unit="days", time_origin="2030-01-01", window=9)
    assert population_settings(chosen) == chosen
    plain = population_settings(Settings(time_unit="number"))
    assert (plain.fields, plain.time_unit, plain.time_origin) == (FIELDS, "number", None)
