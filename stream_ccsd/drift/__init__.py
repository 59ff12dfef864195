"""Has the stream changed? Statistics by period, change detectors, and the event that says so."""
