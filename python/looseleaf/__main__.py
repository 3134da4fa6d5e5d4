"""``python -m looseleaf`` is the command ``looseleaf``."""

import sys

from looseleaf.cli import main

sys.exit(main())
