"""The exact nearest windows of the library, by final weight."""
