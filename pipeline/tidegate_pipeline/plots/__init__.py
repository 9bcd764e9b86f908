"""Plots of group history as PNG, from the tables that the jobs write. Needs matplotlib (extra `plots`), no Spark."""
