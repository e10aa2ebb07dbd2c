"""Measurements on top of the engine: hardware profiles and acceptance rates."""
