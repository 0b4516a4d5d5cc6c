"""Text of a page as a browser shows it, read in time that goes by the page's length (tests/test_linear_time.py)."""

import time

import pytest

from scanner.service.reading import read_file


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("<p>a < b and <i>c</i></p>d", "a < b and c\nd"),
        ("a<!-- b <b>c</b> -->d<!-->e<!--->f<!--x--!>g<!-- never", "adefg"),
        ("<style>p > a</style><script>if (a<b) c</script>d &lt; e", "d < e"),
        ("<a title='x>y'>z</a>", "z"),
    ],
)
def test_a_page_is_what_a_browser_shows(page, shown):
    assert read_file("text/html", page.encode(), 1_000) == shown.encode()


@pytest.mark.parametrize("unit", ["<a ", "<a/", "<!--", "<a b='", "<A"])
def test_tags_and_comments_that_never_end_take_no_time(unit):
    """16 KiB of them took two CPU seconds, and twice as many four times as long."""
    began = time.process_time()
    read_file("text/html", (2**17 // len(unit) * unit).encode(), 2**20)
    assert time.process_time() - began < 5
