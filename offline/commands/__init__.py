"""The commands that evaluate and measure: evaluate, bench."""
