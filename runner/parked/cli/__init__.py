"""The `parked` command."""

from parked.cli.frame import main

__all__ = ["main"]
