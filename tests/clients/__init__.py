"""The client matrix: `make test SUITE=matrix`."""
