"""What Spark reads: topics, group events, lag samples."""
