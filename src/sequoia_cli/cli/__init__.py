"""The `sequoia` command: parse, call, render."""
