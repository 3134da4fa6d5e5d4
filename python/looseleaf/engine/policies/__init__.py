"""How requests are ordered: one file per policy."""
