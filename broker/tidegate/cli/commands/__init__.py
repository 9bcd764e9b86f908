"""One module a command or command group: options, tables, exit codes."""
