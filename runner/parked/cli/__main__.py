"""`python -m parked.cli` is `parked`."""

import sys

from parked.cli import main

if __name__ == "__main__":
    sys.exit(main())
