"""What operators see of a worker or learner: logs, and metrics and health over HTTP."""
