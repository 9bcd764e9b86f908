"""What each request costs, in counts that do not depend on the machine; compared with table.toml."""
