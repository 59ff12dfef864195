"""Would it catch fraud? Two protocols on labelled transactions: the paper's, and the one a stream really has.

``data`` reads transactions and labels and keeps them apart; ``split`` makes disjoint sets of accounts; ``paper`` and
``stream`` run the engine's own core; ``baselines`` stand beside it on the same rows; ``metrics`` judges; ``report``
draws.
"""
