"""Clustering of labelled series: beside the field without labels, with labels to choose by, and the paper's Table 1.

``data`` reads the series. ``distances`` has the grids and matrices, and keeps slow matrices. ``protocols`` says how
settings are chosen, with labels or without, and scored. ``evaluate`` runs it over data sets and keeps what is finished.
``metrics`` compares methods; ``report`` and ``pictures`` show the results.
"""

from offline.peers import peer

peer("pandas")  # tables are its frames: said once, in a sentence, where it is missing
