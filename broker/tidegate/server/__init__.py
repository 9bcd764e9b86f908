"""The socket layer: listeners, connections, request ordering and dispatch to handlers."""
