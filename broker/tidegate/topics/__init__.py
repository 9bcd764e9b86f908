"""Topics: names, ids, partitions and configs."""
