"""Where transactions come from: CSV, JSON lines and Parquet files, and the simulator."""
