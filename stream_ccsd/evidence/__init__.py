"""The evidence for fraud in one transaction: a log likelihood ratio, term by term.

``densities`` holds the distributions of normal transactions, which ``estimation`` estimates and ``smoothing`` chooses
bandwidths for. ``profile`` says what the account did before. ``terms`` compares the transaction with both, field by
field. ``supervised`` adds what verdicts say. Everything that scores is a compiled function of plain arrays, without
labels, clock or state of its own.
"""
