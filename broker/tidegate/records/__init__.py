"""Record batches (magic 2): zero-copy views, builders and checks."""
