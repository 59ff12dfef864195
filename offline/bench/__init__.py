"""Benchmarks: each measures the product and its peers in one run and returns plain numbers for JSON."""
