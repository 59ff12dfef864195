"""The only package that knows Faust: app, consumer, account table, and what Faust never promised to keep."""
