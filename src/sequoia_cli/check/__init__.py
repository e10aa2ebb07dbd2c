"""Checking that generated text is distributed as the target's: comparison with transformers' own forward."""
