"""The version of the distribution, in one place. Imports nothing, so that a build can read it."""

__version__ = "0.1.0"
