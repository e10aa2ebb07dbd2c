"""Tree-based speculative decoding: profile, acceptance, compile, generate."""

__version__ = "0.1.0"
