"""Runs, results and sites on disk: every file is complete or absent, and nothing is ever unpickled."""
