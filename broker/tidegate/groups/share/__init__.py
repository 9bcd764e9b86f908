"""Share groups of KIP-932: members, and the records that they acquire and acknowledge."""
