"""Would it catch fraud? Two protocols on labelled transactions: the paper's, and the one a stream really has.

``data`` reads transactions and labels and keeps them apart; ``split`` makes disjoint sets of accounts; ``paper``,
``stream``, ``periods`` and ``patterns`` run the engine's own core; ``baselines`` stand beside it on the same rows;
``metrics`` judges; ``tables`` takes means over runs; ``report`` draws.

Where labels come late and are learnt from: ``verdicts`` runs the protocol, ``days`` has a stream day by day, ``desk``
and ``queue`` say who knows what when, ``scoring`` runs engine and lessons, ``delayed`` and ``supervised`` are what else
could learn, ``judging`` has figures by week, ``handbook`` the Handbook's own weeks.
"""

from offline.peers import peer

peer("pandas")  # every module here works on its frames: said once, in a sentence, where it is missing
