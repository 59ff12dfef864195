"""From scores to alerts: the threshold and when it counts (``policy``), and the reasons (``alert``, ``sentences``)."""
