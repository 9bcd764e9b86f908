"""How a command fails: one line for people, exit code 2."""


class CommandFailed(Exception):
    """What was asked for cannot be done; the message is one line."""
