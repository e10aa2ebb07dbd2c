"""Whether the text is the target's own: what the tool writes, put to the target itself."""
