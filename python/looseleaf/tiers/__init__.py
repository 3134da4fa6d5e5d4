"""Where blocks go when they leave the pool: base.py is the interface, one file per place."""
