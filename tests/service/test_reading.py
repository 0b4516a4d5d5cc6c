"""Text of a page as a browser shows it, read in time that goes by the page's length (tests/test_linear_time.py)."""

import asyncio
import io
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from subprocess import PIPE

import pytest

from scanner.service import reading
from scanner.service.processes import Unavailable
from scanner.service.reading import FileReader, Unread, read_file
from tests.support.pdf import needs_files, pdf_of, pdf_with


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


def mapped(first: int) -> bytes:
    """A PDF whose letters are drawn as Latin ones and decode to characters from `first` on."""
    to = "".join(f"<{code:02x}> <{first + code:04x}>\n" for code in range(0x21, 0x7F))
    cmap = f"1 begincodespacerange\n<00> <FF>\nendcodespacerange\n{0x7F - 0x21} beginbfchar\n{to}endbfchar".encode()
    stream = b"<< /Length %d >>\nstream\n" % len(cmap) + cmap + b"\nendstream"
    return pdf_with(b"BT /F1 12 Tf (one two three) Tj ET", b"", font=b"/ToUnicode 6 0 R", more=[stream])


@needs_files
@pytest.mark.parametrize(("first", "readable"), [(0, True), (0x390, True), (0xE000, False), (0xFF8C, False)])
def test_letters_that_stand_for_no_characters(first, readable):
    """Such files, which show a marked text, got a signed `not found`."""
    found = read_file("application/pdf", mapped(first), 1_000)
    assert (found is Unread.NO_LETTERS) == (not readable)


@needs_files
def test_a_bullet_of_a_font_of_symbols_costs_no_text():
    assert read_file("text/html", b"<p>&#xf0b7; a point</p>" + b"<p>one two three four</p>" * 9, 1_000) != (
        Unread.NO_LETTERS
    )
    assert read_file("text/plain", "\uf0b7\uf0b7".encode(), 1_000) == "\uf0b7\uf0b7".encode()
    assert read_file("text/html", b"&#xfffd;" * 9, 1_000) is Unread.NO_LETTERS


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


@needs_files
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<w:p><w:r><w:t>one<!-- x --> two<?x y?> three</w:t></w:r></w:p>", b"one two three"),
        (
            "<w:p><w:r><w:t>one</w:t><w:cr/><w:t>self</w:t><w:noBreakHyphen/><w:t>made</w:t></w:r></w:p>",
            b"one\nself-made",
        ),
    ],
)
def test_no_part_of_a_docx_is_passed_over(body, text):
    """What stood behind a comment within a run was not read, so that a mark in it was not found."""
    assert read_file(DOCX, docx_of(body), 1_000) == text


@needs_files
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_docx_of_which_programs_may_show_another_text_is_refused():
    """Text behind an entity was passed over, and of two parts of a name the last was read."""
    word = "<w:p><w:r><w:t>one &x; two</w:t></w:r></w:p>"
    assert read_file(DOCX, docx_of(word, before=b"<!DOCTYPE a [<!ENTITY x 'and'>]>"), 1_000) is Unread.NO_TEXT
    assert read_file(DOCX, docx_of("<w:p/>", **{"word/document.xml": b"<a/>"}), 1_000) is Unread.NO_TEXT


def test_bytes_of_utf_16_do_not_pass_for_utf_8():
    """Latin letters in UTF-16 without a mark are UTF-8 with zeros between, in which no mark would be found."""
    for kind in ("text/plain", "text/markdown", "text/html"):
        assert read_file(kind, "one two".encode("utf-16-le"), 1_000) is Unread.NO_TEXT
        assert read_file(kind, "one two".encode("utf-16"), 1_000) is Unread.NO_TEXT


def test_a_page_whose_head_has_no_end_is_read():
    """HTML lets both ends be left out, and then all of the page passed for its head."""
    assert read_file("text/html", b"<html><head><title>t</title><meta a=b><body><p>one", 1_000) == b"one"
    assert read_file("text/html", b"<head><title>t</title><style>s</style><p>one", 1_000) == b"one"


def apart(kind: str, raw: bytes, most: int, before: str = "pass") -> tuple[bytes | None, float]:
    """A file's text as a process reads it, with the process's CPU seconds.

    before: Python that the process runs first, with `reading`.
    """
    code = f"from scanner.service import reading; {before}; reading.main({kind!r}, {most})"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE)
    with process:
        process.stdin.write(raw)
        process.stdin.close()
        text = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = status
    return None if status else text, used.ru_utime + used.ru_stime


def lying(packed: int, method: int) -> bytes:
    """A DOCX whose document is so many bytes, and says that it is 4,000."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(docx_of("<w:p/>"))) as old, zipfile.ZipFile(made, "w", method) as new:
        for entry in old.namelist():
            raw = old.read(entry)
            new.writestr(entry, raw.ljust(packed) if entry == "word/document.xml" else raw)
    return made.getvalue().replace(struct.pack("<L", packed), struct.pack("<L", 4_000))


@pytest.mark.costly
@needs_files
def test_hostile_files_give_no_text_in_bounded_time():
    entities = "<w:p><w:r><w:t>&a9;</w:t></w:r></w:p>"
    hostile = {
        "pages": ("application/pdf", pdf_with(b"", b"", 501)),
        "text": ("application/pdf", pdf_of(["x" * 2_000])),
        "bomb": ("application/pdf", pdf_with(zlib.compress(b"(x) Tj " * 20_000_000), b"/Filter /FlateDecode")),
        "spaces": (
            "application/pdf",
            pdf_with(zlib.compress(b" " * 70_000_000 + b"q " * 9**6), b"/Filter /FlateDecode"),
        ),
        "cut": ("application/pdf", pdf_of(["one"])[:200]),
        "zip": (DOCX, docx_of(entities, **{"word/media/a.png": bytes(70_000_000)})),
        "lies": (DOCX, lying(900_000_000, zipfile.ZIP_BZIP2)),
        "elements": (DOCX, docx_of("<w:p/>" * 10_000_000)),
        "deep": (DOCX, docx_of("<w:p>" * 100_000)),
        "entities": (DOCX, docx_of(entities, before=BILLION)),
        "many": (DOCX, docx_of("<w:p><w:r><w:t>one two</w:t></w:r></w:p>" * 1_000)),
        "no zip": (DOCX, BILLION),
        "none": ("application/pdf", b""),
        "attributes": ("text/html", b"<a " + b"b=c " * 3_000_000 + b">x"),
    }
    for name, (kind, raw) in hostile.items():
        text, seconds = apart(kind, raw, 1_000)
        assert not text, name
        assert seconds <= reading.CPU_SECONDS + 1, name


@pytest.mark.costly
@needs_files
def test_a_file_that_takes_too_much_ends_within_code_that_hears_of_no_signal():
    slow = pdf_with(b"BT /F1 12 Tf " + b"(x) Tj " * 200_000 + b"ET", b"")
    assert apart("application/pdf", slow, 10_000_000, before="reading.CPU_SECONDS = 1")[0] is None
    counts = "reading.CPU_SECONDS = 1; reading._READERS['text/plain'] = lambda *_: str(sum(range(10**12)))"
    text, seconds = apart("text/plain", b"", 1_000, before=counts)
    assert text is None
    assert seconds < 3
    holds = "reading._READERS['text/plain'] = lambda *_: str(len(bytes({})))"
    assert apart("text/plain", b"", 1_000, before=holds.format(1))[0] == b"1"
    assert apart("text/plain", b"", 1_000, before=holds.format(reading.MEMORY_BYTES))[0] is None


@pytest.mark.costly
@needs_files
def test_a_file_starts_no_program_and_is_not_written(tmp_path):
    """A library gives pictures of one kind to a program, by a file, where that is installed."""
    program = tmp_path / "jbig2dec"
    program.write_text(f"#!/bin/sh\ncp -r . '{tmp_path}/stolen'\n")
    program.chmod(0o755)
    picture = pdf_with(b"a part of a text", b"/Filter /JBIG2Decode")
    reader = FileReader(1, 60, 1_000, lambda *_: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        patch.setenv("TMPDIR", str(tmp_path))
        found = asyncio.run(reader.text_of("caller", "application/pdf", picture))
        assert found is Unread.NO_TEXT
    assert [path.name for path in tmp_path.iterdir()] == ["jbig2dec"]
    writes = f"reading._READERS['text/plain'] = lambda *_: str(open('{tmp_path}/kept', 'wb', 0).write(b'one'))"
    assert apart("text/plain", b"", 1_000, before=writes)[0] is None
    assert (tmp_path / "kept").read_bytes() == b""


def test_one_file_of_a_caller_is_read_at_a_time_and_few_wait(monkeypatch):
    """24 files of one caller, 46 KB each, had everybody's texts wait for 77 seconds."""
    reading_now, most = Counter[bytes](), Counter[bytes]()

    async def read(_kind: str, raw: bytes, _most: int) -> bytes:
        reading_now[raw] += 1
        most[raw] = max(most[raw], reading_now[raw])
        await asyncio.sleep(0.01)
        reading_now[raw] -= 1
        return raw

    async def ask_about_many() -> list[bytes | BaseException]:
        reader = FileReader(2, 60, 1_000, lambda *_: None)
        asked = [reader.text_of(who, "text/plain", who) for who in [b"crowd"] * 24 + [b"other"]]
        return await asyncio.gather(*asked, return_exceptions=True)

    monkeypatch.setattr(reading, "_read_apart", read)
    found = asyncio.run(ask_about_many())
    assert most == {b"crowd": 1, b"other": 1}
    assert found[:8] + found[24:] == [b"crowd"] * 8 + [b"other"]
    assert all(isinstance(one, Unavailable) for one in found[8:24])


@pytest.mark.seconds
def test_a_process_that_reads_a_file_ends_first_where_memory_ends_and_with_no_image_of_it():
    """The processes that score, of which each ends before the server, would have ended for a file of a GiB."""
    looks = "reading._READERS['text/plain'] = lambda *_: ''.join(open(f'/proc/self/{name}').read() for name in NAMES)"
    looks = looks.replace("NAMES", "('oom_score_adj', 'limits')")
    text, _ = apart("text/plain", b"", 10_000, before=looks)
    assert text.startswith(b"1000\n")
    assert re.search(rb"Max core file size +0 +0 ", text)


@pytest.mark.seconds
def test_a_process_that_reads_a_file_knows_no_secret_of_the_environment_and_no_module_beside_it(monkeypatch, tmp_path):
    """Keys of a registry may stand in variables, and a folder of operators may have a module of any name."""
    monkeypatch.setenv("GREEN_KEY", "5eed" * 16)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zipfile.py").write_text("raise SystemExit(9)")
    read = FileReader(1, 60, 1_000, lambda *_: None).text_of("caller", "text/plain", b"one")
    assert asyncio.run(read) == b"one"
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nexec {shutil.which('env')}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert b"5eed" not in asyncio.run(FileReader(1, 60, 1_000, lambda *_: None).text_of("caller", "text/plain", b"one"))


@pytest.mark.seconds
def test_a_file_that_takes_too_long_is_refused_and_its_process_ends(monkeypatch, tmp_path):
    """The process is known from when it began: on a busy machine, it may be killed before it could write who it is."""
    begin, begun = asyncio.create_subprocess_exec, []

    async def begin_and_note(*command: str, **options):
        begun.append(await begin(*command, **options))
        return begun[-1]

    async def ask_about_one() -> None:
        with pytest.raises(Unavailable, match="too busy"):
            await FileReader(1, 1, 1_000, lambda *_: None).text_of("caller", "text/plain", b"one")

    slow = tmp_path / "python"
    slow.write_text(f"#!/bin/sh\nexec {shutil.which('sleep')} 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(asyncio, "create_subprocess_exec", begin_and_note)
    asyncio.run(ask_about_one())
    (process,) = begun
    assert process.returncode == -signal.SIGKILL
    assert not Path(f"/proc/{process.pid}").exists()
