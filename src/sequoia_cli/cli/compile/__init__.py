"""`sequoia compile`: a hardware profile and acceptance rates in, the fastest tree out."""
