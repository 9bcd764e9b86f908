"""The security audit: who did what from where with which outcome, as OCSF events, off the hot path."""
