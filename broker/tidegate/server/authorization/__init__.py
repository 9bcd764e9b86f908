"""Access control: what each API needs, and the check before each handler."""
