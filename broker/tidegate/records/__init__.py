"""Record batches (magic 2): views over the bytes, and builders of new ones."""
