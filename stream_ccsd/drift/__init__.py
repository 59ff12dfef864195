"""Has the stream changed? Statistics by period, change detectors, and the change that they report."""
