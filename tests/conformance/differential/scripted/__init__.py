"""Conversations by hand, after the scenarios of the classic protocol's specification (their numbers in brackets)."""
