"""The image, really built and run: `make test SUITE=image`."""
