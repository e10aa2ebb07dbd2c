"""The forward at the speed of the machine: prepared once after loading, the same for all families."""
