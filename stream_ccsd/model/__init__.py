"""A fitted model: windows of normal accounts, densities of outcomes, and the calibration of scores.

:class:`~stream_ccsd.model.model.Model` holds them with the settings they were made with, and is saved as a directory of
Arrow files and a readable JSON. ``registry`` is a folder of its versions, ``calibration`` says how rare a score is,
``codes`` are the numbers behind names, and ``checks`` is what a loaded file has to pass.
"""
