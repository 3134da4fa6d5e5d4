"""Two implementations that do the same work in turns, and the table of their times."""
