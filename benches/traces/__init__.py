"""Recorded request traces, and their replay through a pool."""
