"""The features of KIP-584: levels of the protocol that clients may use. They depend on the brokers' version only."""

from __future__ import annotations

from typing import Final

SUPPORTED: Final = (
    ("group.version", 0, 1),
    ("share.version", 0, 2),
    ("streams.version", 0, 1),
    ("transaction.version", 0, 2),
)
"""Name, lowest and highest level."""
FINALIZED: Final = (
    ("group.version", 1, 1),
    ("share.version", 2, 2),
    ("streams.version", 1, 1),
    ("transaction.version", 2, 2),
)
"""Name, highest and lowest level of what clients may use: group.version 1 is KIP-848, share.version 1 is KIP-932
and 2 KIP-1191 (dead letters), streams.version 1 is KIP-1071, transaction.version 2 is KIP-890."""
EPOCH: Final = 0
"""Epoch of the finalized features: they never change at run time."""
