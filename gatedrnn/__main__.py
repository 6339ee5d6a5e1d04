"""`python -m gatedrnn COMMAND`: the same as `gatedrnn COMMAND`."""

import sys

from gatedrnn.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
