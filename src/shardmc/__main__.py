"""`python -m shardmc` is the command line."""

from shardmc.cli import main

main()
