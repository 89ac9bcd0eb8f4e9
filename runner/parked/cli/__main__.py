"""`python -m parked.cli` is `parked`."""

import sys

from parked.cli.frame import main

if __name__ == "__main__":
    sys.exit(main())
