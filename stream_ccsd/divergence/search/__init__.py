"""Exact search for the nearest windows of the library, by final weight."""
