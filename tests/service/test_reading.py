"""Text of a page as a browser shows it, read in time that goes by the page's length (tests/test_linear_time.py)."""

import io
import time
import zipfile
import zlib

import pytest

from scanner.service import reading
from scanner.service.reading import KINDS, read_file

needs_files = pytest.mark.skipif("application/pdf" not in KINDS or len(KINDS) < 5, reason="no extra `files`")


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


def pdf_of(lines: list[str]) -> bytes:
    """A PDF of a page whose content is these lines of text, written by hand (ISO 32000-1)."""
    drawn = " ".join(f"({line}) Tj T*" for line in lines)
    content = f"BT /F1 12 Tf 14 TL 72 720 Td {drawn} ET".encode()
    return pdf_with(content, b"")


def pdf_with(content: bytes, filters: bytes, pages: int = 1) -> bytes:
    font = b"/Resources << /Font << /F1 5 0 R >> >>"
    page = b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R " + font + b" /MediaBox [0 0 612 792] >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [" + b"3 0 R " * pages + b"] /Count " + str(pages).encode() + b" >>",
        page,
        b"<< /Length %d %s >>\nstream\n" % (len(content), filters) + content + b"\nendstream",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    made, places = bytearray(b"%PDF-1.4\n"), []
    for number, one in enumerate(objects, 1):
        places.append(len(made))
        made += b"%d 0 obj\n" % number + one + b"\nendobj\n"
    table = len(made)
    made += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    made += b"".join(b"%010d 00000 n \n" % place for place in places)
    return bytes(made + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, table))


DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


BILLION = "<!DOCTYPE a [<!ENTITY a0 'x'>{}]>".format(
    "".join(f"<!ENTITY a{place + 1} '{f'&a{place};' * 10}'>" for place in range(9))
).encode()
"""Ten entities, of which the last is a billion letters."""


def docx_of(body: str, before: bytes = b"", **more: bytes) -> bytes:
    """A DOCX with a body of WordprocessingML."""
    names = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    mc = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    import docx

    made = io.BytesIO()
    docx.Document().save(made)
    packed = io.BytesIO()
    with zipfile.ZipFile(made) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.namelist():
            whole = before + f"<w:document {names} {mc}><w:body>{body}</w:body></w:document>".encode()
            new.writestr(entry, whole if entry == "word/document.xml" else old.read(entry))
        for name, raw in more.items():
            new.writestr(name, raw)
    return packed.getvalue()


@needs_files
def test_the_text_of_a_pdf_is_read_page_by_page():
    assert read_file("application/pdf", pdf_of(["one two", "three"]), 1_000) == b"one two\nthree"
    assert read_file("application/pdf", pdf_with(b"BT /F1 12 Tf (page) Tj ET", b"", 3), 1_000) == b"page\npage\npage"


@needs_files
def test_the_text_of_a_docx_is_that_of_all_changes_accepted():
    body = (
        "<w:p><w:r><w:t>one </w:t></w:r><w:ins><w:r><w:t>two</w:t></w:r></w:ins>"
        "<w:del><w:r><w:delText>gone</w:delText></w:r></w:del><w:r><w:br/><w:t>three</w:t><w:tab/></w:r></w:p>"
        "<w:tbl><w:tr><w:tc><w:tcPr><w:gridSpan w:val='9999999'/></w:tcPr><w:p><w:r><w:t>cell</w:t></w:r></w:p></w:tc>"
        "</w:tr></w:tbl><w:p><mc:AlternateContent><mc:Choice Requires='wps'><w:r><w:t>box</w:t></w:r></mc:Choice>"
        "<mc:Fallback><w:r><w:t>box</w:t></w:r></mc:Fallback></mc:AlternateContent></w:p>"
    )
    assert read_file(DOCX, docx_of(body), 10_000) == b"one two\nthree\t\ncell\nbox"


@pytest.mark.costly
@needs_files
def test_hostile_files_give_no_text_in_bounded_time():
    entities = "<w:p><w:r><w:t>&a9;</w:t></w:r></w:p>"
    hostile = {
        "pages": ("application/pdf", pdf_with(b"", b"", 501)),
        "text": ("application/pdf", pdf_of(["x" * 2_000])),
        "bomb": ("application/pdf", pdf_with(zlib.compress(b"(x) Tj " * 20_000_000), b"/Filter /FlateDecode")),
        "cut": ("application/pdf", pdf_of(["one"])[:200]),
        "zip": (DOCX, docx_of(entities, **{"word/media/a.png": bytes(70_000_000)})),
        "deep": (DOCX, docx_of("<w:p>" * 100_000)),
        "entities": (DOCX, docx_of(entities, before=BILLION)),
        "many": (DOCX, docx_of("<w:p><w:r><w:t>one two</w:t></w:r></w:p>" * 1_000)),
        "no zip": (DOCX, BILLION),
        "none": ("application/pdf", b""),
    }
    began = time.process_time()
    assert {name: read_file(kind, raw, 1_000) for name, (kind, raw) in hostile.items()} == dict.fromkeys(hostile)
    assert time.process_time() - began < 60


@needs_files
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interruption that Python dropped
def test_a_file_that_takes_long_is_given_up(monkeypatch):
    monkeypatch.setattr(reading, "SECONDS", 0.2)
    slow = pdf_with(b"BT /F1 12 Tf " + b"(x) Tj " * 200_000 + b"ET", b"")
    began = time.monotonic()
    assert read_file("application/pdf", slow, 10_000_000) is None
    assert time.monotonic() - began < 20
