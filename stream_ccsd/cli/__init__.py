"""The command line: one module a group of commands, each a thin layer over the library."""
