"""The parts of `bench_paper.py`."""
