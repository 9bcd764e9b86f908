"""The way to Redis: links, scripts, keys, wake-ups."""
