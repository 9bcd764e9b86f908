"""One function per API: authorise, translate, call the domain, reply."""
