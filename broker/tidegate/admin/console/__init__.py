"""The console: pages for people over what the admin HTTP tells, rendered here and updated in place by htmx."""
