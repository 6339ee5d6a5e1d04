"""`python -m gatedrnn COMMAND`: the same as `gatedrnn COMMAND`."""

import sys

from gatedrnn_command import main

if __name__ == "__main__":
    sys.exit(main())
