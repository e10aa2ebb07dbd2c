"""Models, tree cache, drafting, verification, decoding. Knows token ids, not files or text."""
