"""A replay from start to end: fitting, the loop, hooks between its batches, outputs and report."""
