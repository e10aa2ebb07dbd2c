"""What `bench_verifiers.py` is made of."""
