"""Sockets: listening, turn-taking on each connection, frames to handlers and back."""
