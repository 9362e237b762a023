"""Where rows come from and how they are dealt into shards."""
