"""The report on the length of sentences counts sentences of prose, and neither code nor tables."""

from tests.support.readability import Page, sentences_of, words_of

PAGE = """# A title that is no sentence

A [scan](guides/nightly-scans.md) of e.g. 3.5 MB ends. **Then** read `scans`!

| a | table |
|---|---|

- The first
  item.
- The second item:

```sh
brickscan scan scan.toml   # A comment. With two sentences.
```
"""


def test_sentences_of_prose():
    assert sentences_of(PAGE) == [
        "A scan of e.g. 3.5 MB ends.",
        "**Then** read `scans`!",
        "The first item.",
        "The second item:",
    ]


def test_code_is_one_word():
    assert words_of("Run `brickscan scan scan.toml` now.") == 3


def test_long_sentences():
    of_25, of_26 = " ".join(["word"] * 25), " ".join(["word"] * 26)
    assert Page("page", 51, [of_25, of_26]).long == [of_26]
