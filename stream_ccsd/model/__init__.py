"""What normal looks like: windows (``index``), laws of outcomes (``laws``) and rates of scores (``tails``).

A :class:`~stream_ccsd.model.model.Model` holds all three with the settings they were made with; it is saved as a
directory of Arrow files and a readable JSON.
"""
