"""A stream to try things on: customers, merchants and patterns of fraud."""
