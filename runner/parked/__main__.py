"""`python -m parked` is the `parked` command."""

from parked.cli import main

raise SystemExit(main())
