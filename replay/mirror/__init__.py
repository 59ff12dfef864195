"""Topics of workers in a local state file of bounded size: what ``stream-ccsd watch --from kafka://`` looks at."""
