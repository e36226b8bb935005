"""``python -m potluck``."""

from potluck.cli.main import main

main()
