"""The web console: server-rendered pages over the admin HTTP's data, updated in place by htmx."""
