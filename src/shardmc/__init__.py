"""shardmc: posterior draws for models with few parameters and very many rows."""
