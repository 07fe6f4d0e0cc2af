"""Studies: many small runs that together answer a question about a method."""
