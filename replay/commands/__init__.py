"""The commands of a replay: replay, fit, simulate, alerts, explain."""
