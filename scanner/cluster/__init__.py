"""A bounded pool of Ray actors: shards in, commits out. The only package that imports Ray."""
