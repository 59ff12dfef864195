"""Three scores of a transaction, each a Cauchy-Schwarz divergence between laws.

``divergence`` is the paper's: the account's recent windows against the library's, around the newest window.
``evidence`` compares the newest transaction itself, field by field, with what normal accounts do and with what
``habits`` says that this account does. All are compiled functions of plain arrays: no labels, no clock, no state of
their own.
"""
