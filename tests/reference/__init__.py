"""Pages of docs/ that are made from the code and from what the tests declare: `make docs` writes them."""
