"""The console script, and ``python -m potluck``."""

import sys


def main() -> None:
    """Run the command; Ctrl-C is no error, not even while the program is being imported."""
    try:
        from potluck.cli.main import main as run_command
    except KeyboardInterrupt:
        sys.exit(130)
    run_command()


if __name__ == "__main__":
    main()
