"""The live page: investigators see, judge and tune in a browser (``stream-ccsd watch``)."""
