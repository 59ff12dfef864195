"""Would it catch fraud? Two protocols on labelled transactions: the paper's, and the one a stream really has.

``data`` reads transactions and labels, keeps them apart, and splits accounts into disjoint sets. ``paper``, ``stream``
and ``simulated`` run the engine's own core. ``baselines`` stand beside it on the same rows. ``metrics`` scores
rankings; ``report`` takes means over runs and draws.

Where labels come late and are learnt from, ``verdicts`` runs the protocol and the Handbook's own weeks. ``days`` has a
stream day by day. ``investigators`` says who knows what when, and has figures by week. ``scoring`` runs the engine with
its model updates; ``raw_features`` and ``supervised`` are what else could learn.
"""

from offline.peers import peer

peer("pandas")  # every module here works on its frames: said once, in a sentence, where it is missing
