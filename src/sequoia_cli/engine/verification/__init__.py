"""Verification: which path of a drafted tree the target accepts, by each published rule."""
