"""Compiled programs: a bounded number of them in this process, and a folder of them for the next one."""
