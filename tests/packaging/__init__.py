"""Both distributions, built and installed into environments that have nothing else."""
