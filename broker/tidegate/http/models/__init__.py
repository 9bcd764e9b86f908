"""The bodies of the REST API, one pydantic model a thing."""
