"""More than one process: ranks that share a step's work, and what travels between them."""
