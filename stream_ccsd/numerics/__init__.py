"""The base of compiled code: how it is compiled, arrays, sums in one fixed order, vectorised functions."""
