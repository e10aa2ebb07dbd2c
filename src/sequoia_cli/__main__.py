"""`python -m sequoia_cli` is the `sequoia` command."""

from sequoia_cli.cli.app import main

main()
