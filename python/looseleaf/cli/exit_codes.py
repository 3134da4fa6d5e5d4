"""What the commands return, and how their help says so."""

DONE = 0
# A closed output pipe, too: what is usual in Python, whose own exit code for it this is.
FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130  # as a shell reports a program that SIGINT ended

MEANINGS = """\
Exit codes:
  0    all done
  1    the run failed, or the output's reader went away, as after "| head -1"
  2    bad input: nothing was run, or with --keep-going all but the bad prompts
  130  stopped by Ctrl-C, with what was done written
"""
