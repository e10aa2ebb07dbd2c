"""Whether the text is the target's own: what the tool writes, compared with transformers and the target."""
