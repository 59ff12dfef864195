"""From scores to alerts: where the line is (``threshold``), when it counts (``policy``), and why (``reasons``)."""
