"""One function an API: authorise, translate, call the domain, answer."""
