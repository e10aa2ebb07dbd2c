"""Rules that choose the tree of each step, compared under one cost curve."""
