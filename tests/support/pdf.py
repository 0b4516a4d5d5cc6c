"""PDFs of a page or a few, written by hand (ISO 32000-1)."""

from collections.abc import Sequence

import pytest

from scanner.service.reading import FILE_ENDS

needs_files = pytest.mark.skipif("application/pdf" not in FILE_ENDS or len(FILE_ENDS) < 5, reason="no extra `files`")


def pdf_of(lines: list[str]) -> bytes:
    """A PDF of a page whose content is these lines of text, written by hand (ISO 32000-1)."""
    drawn = " ".join(f"({line}) Tj T*" for line in lines)
    content = f"BT /F1 12 Tf 14 TL 72 720 Td {drawn} ET".encode()
    return pdf_with(content, b"")


def pdf_with(content: bytes, filters: bytes, pages: int = 1, font: bytes = b"", more: Sequence[bytes] = ()) -> bytes:
    resources = b"/Resources << /Font << /F1 5 0 R >> >>"
    page = b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R " + resources + b" /MediaBox [0 0 612 792] >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [" + b"3 0 R " * pages + b"] /Count " + str(pages).encode() + b" >>",
        page,
        b"<< /Length %d %s >>\nstream\n" % (len(content), filters) + content + b"\nendstream",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica " + font + b" >>",
        *more,
    ]
    made, places = bytearray(b"%PDF-1.4\n"), []
    for number, one in enumerate(objects, 1):
        places.append(len(made))
        made += b"%d 0 obj\n" % number + one + b"\nendobj\n"
    table = len(made)
    made += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    made += b"".join(b"%010d 00000 n \n" % place for place in places)
    return bytes(made + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, table))
