"""Clustering of labelled series: the paper's Table 1, and the same without its cap, beside elastic distances.

``data`` brings the series, ``distances`` the grids and matrices, ``protocols`` says how bandwidths are chosen and
scored, ``evaluate`` runs it over data sets, ``report`` draws it.
"""
