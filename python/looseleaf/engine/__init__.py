"""The engine: requests in, text out, over one block pool."""
