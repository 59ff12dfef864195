"""``stream-ccsd bench sizing`` on a real broker, as small as it gets."""

from offline.bench import sizing


def test_costs_are_measured_on_a_worker(brokers, model, monkeypatch):
    monkeypatch.setattr(sizing, "_WEIGHED", 2000)
    steps = []
    result = sizing.measure_sizing(f"kafka://{brokers}", 20, 60, lambda done, of: steps.append(done), model)
    measured = result["measured"]
    assert steps == [1, 2, 3, 4, 5]
    assert measured["accounts"] == 20
    assert all(value > 0 for name, value in measured.items() if name != "alert_bytes_per_transaction")
    assert measured["states_per_transaction"] <= 1
    assert measured["state_bytes_per_account"] < 4096 + 32
    assert measured["store_bytes_per_account"] > measured["state_bytes_per_account"]
    assert measured["score_bytes"] > measured["transaction_bytes"] > 50
