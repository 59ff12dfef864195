"""Errors a user can act on: the message says what was wrong, where, and what to do next."""


class StreamCcsdError(Exception):
    """Base of all errors this package raises on purpose; the command line prints it without a traceback."""
