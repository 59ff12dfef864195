"""What a replay keeps on disk: one SQLite file that it can resume from."""
