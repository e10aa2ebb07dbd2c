"""Benchmarking engines: each runs in its own process, and they take turns on the same prompts."""
