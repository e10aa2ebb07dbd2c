"""Values and the files that hold them. Standard library and yaml only."""
