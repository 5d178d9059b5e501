"""The speech node for voice agents."""

__version__ = "0.1.0"
