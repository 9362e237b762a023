"""What keeps bad files out: limits on the size of input, checks of files that others wrote, checksums, and stamps."""
