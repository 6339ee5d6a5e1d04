"""What `gatedrnn COMMAND` starts: outside the package, whose import takes a second in which Ctrl-C must print no traceback."""

import signal
import sys
import threading


def main() -> int:
    """Run the command. Until it is imported and once it has ended, Ctrl-C ends the process at once, without a word."""
    told = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a background job's is ignored, and stays so
    told = told and threading.current_thread() is threading.main_thread()  # others may set none
    try:
        if told:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        from gatedrnn.cli.main import main as run

        if told:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    finally:
        if told:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
