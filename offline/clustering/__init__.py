"""Clustering of labelled series: beside the field without labels, with labels to choose by, and the paper's Table 1.

``data`` brings the series, ``distances`` the grids and matrices; ``label_free`` has every method at its defaults,
``protocols`` says how bandwidths are chosen by labels, and scored; ``evaluate`` runs it over data sets, ``journal``
keeps what is finished, ``metrics`` compares, ``tables`` says it in texts, ``critical`` and ``report`` draw it.
"""

from offline.peers import peer

peer("pandas")  # tables are its frames: said once, in a sentence, where it is missing
