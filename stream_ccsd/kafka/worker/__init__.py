"""A worker: scores the transactions of its partitions, each with one effect, whatever fails."""
