"""What the commands return."""

DONE = 0
FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130  # as a shell reports a program that SIGINT ended
