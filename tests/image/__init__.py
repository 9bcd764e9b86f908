"""The image, really built and run: `make image`."""
