"""What is learnt from a stream while it runs: what it looks like now, and whether that has changed."""
