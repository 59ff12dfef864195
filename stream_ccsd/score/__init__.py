"""Three scores of a transaction, each a Cauchy-Schwarz divergence between laws.

``divergence`` is the paper's: the account's recent windows against the library's, around the newest window. ``outcome``
compares the newest transaction itself with what normal accounts do; ``habit`` with what normal accounts and this
account do. All are compiled functions of plain arrays: no labels, no clock, no state of their own.
"""
