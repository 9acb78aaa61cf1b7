"""Antiphon: Anthropic Messages clients on the inference servers people own."""

__version__ = "0.1.0"
