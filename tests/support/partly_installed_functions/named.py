"""Needs what isn't there."""

from functions.extract import extract

__all__ = ["extract"]
