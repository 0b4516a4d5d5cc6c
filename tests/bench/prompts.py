"""What models are asked to write for benches: stories, code and records about places."""

THINGS = (
    "a lighthouse", "a train station", "a library", "a bakery", "a hospital", "a football club", "a museum", "a farm",
    "a bicycle shop", "an airport", "a school", "a harbour", "a theatre", "a power plant", "a zoo", "a post office",
    "a hotel", "a bank", "a garden centre", "a cinema", "a pharmacy", "a warehouse", "a ski resort", "a restaurant",
    "a radio station", "a law firm", "a town hall", "a shipyard", "a vineyard", "a laboratory", "a fire station",
    "a call centre",
)  # fmt: skip
TELLERS = (
    "somebody who works there", "a child", "an old man", "a visitor", "a reporter", "the owner", "a lost dog",
    "a new neighbour", "a nurse", "a thief", "a painter", "a judge", "two sisters", "a driver", "a tourist", "a cook",
)  # fmt: skip
PROMPTS = {
    "prose": "Write a long story about one day at {thing}, told by {teller}.",
    "code": "Write a Python module with classes and functions, with docstrings, that runs {thing}.",
    "json": "Write a JSON array of twelve records about {thing}; each has id, name, date, price, tags and a note.",
}
