"""Files as streams: transactions in time order for the engine. Imports ``stream_ccsd``, never the reverse."""
