"""What compiled code is made of: how it is compiled, arrays, sums in one fixed order, vectors."""
