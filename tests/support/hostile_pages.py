"""Texts that strangers may write to attack a page, and a check that they stay text."""

from html.parser import HTMLParser

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "{{ 7 * 7 }}{% raw %}",
    "\u202ereversed\u2066\x00\x1b[31m\x07",
    "a" + "\u0301" * 400,
    "</div></main></body></html>",
    "<!--",
    "&lt;b&gt;",
    "> <b>quoted</b>\n<blockquote onload=x>",
]
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "dl", "dt", "dd", "ul", "li", "p", "span"),
    "div",
}


class ParsedPage(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.text = set(), set(), []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text.append(data)


def check(html: str) -> ParsedPage:
    seen = ParsedPage(html)
    assert seen.tags <= TAGS
    assert seen.attributes <= {"lang", "charset", "http-equiv", "content", "name", "class", "dir", "title"}
    assert "default-src 'none'" in html
    return seen
