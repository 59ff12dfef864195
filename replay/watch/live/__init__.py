"""What the page follows while a replay runs: the state file, open cases, events for browsers."""
