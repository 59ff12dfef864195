"""Clustering of labelled series: the paper's Table 1, and the same without its cap, beside elastic distances.

``data`` brings the series, ``distances`` the grids and matrices, ``protocols`` says how bandwidths are chosen and
scored, ``evaluate`` runs it over data sets, ``tables`` says it in texts, ``report`` draws it.
"""

from offline.bench.peers import peer

peer("pandas")  # tables are its frames: said once, in a sentence, where it is missing
