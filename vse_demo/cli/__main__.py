"""`python -m vse_demo.cli` is `vse-demo`."""

import sys

from vse_demo.cli import main

if __name__ == "__main__":
    sys.exit(main())
