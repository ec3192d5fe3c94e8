"""Reading files of every kind, broken ones and bombs among them."""

import io
import json
import zipfile

import pytest

from sage_jax.errors import ConfigError
from sage_jax.tools import Toolbox, ToolFailure, ToolOutcome
from sage_jax.tools.files import FileLimits, FileReader

LIMITS = FileLimits(max_bytes=200_000, max_unpacked=1_000_000, max_rows=3)


def read(path, part="", limits=LIMITS):
    return FileReader({path.name: path}, limits).read_file(path.name, part)


def outcome(path, part="", limits=LIMITS):
    with pytest.raises(ToolFailure) as failure:
        read(path, part, limits)
    return failure.value.outcome


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.txt", "Größe", "Größe"),
        ("a.csv", 'x,y\n1,"2,5"\n', "x | y\n1 | 2,5"),
        ("a.csv", "x;y\n1;2\n", "x | y\n1 | 2"),
        ("a.tsv", "x\ty\n", "x | y"),
        ("a.csv", "n\n" + "1\n" * 9, "n\n1\n1\n[7 more rows]"),
        ("a.json", '{"b": [1]}', '{\n "b": [\n  1\n ]\n}'),
        ("A.JSON", "1", "1"),
        ("a.py", "print(1)", "print(1)"),
    ],
)
def test_texts_and_tables(tmp_path, name, content, text):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read(tmp_path / name) == text


def test_bytes_that_are_no_text_are_shown_as_far_as_they_go(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\xff")
    assert read(tmp_path / "a.txt") == "a\ufffd"


def test_xlsx(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = "one"
    book.active.append(["x", "y"])
    book.active.append([1, None])
    book.create_sheet("two").append(["z"])
    book.save(tmp_path / "a.xlsx")
    assert read(tmp_path / "a.xlsx") == "Sheet one\nx | y\n1 | \n\nSheet two\nz"
    assert read(tmp_path / "a.xlsx", "two") == "Sheet two\nz"
    assert outcome(tmp_path / "a.xlsx", "three") is ToolOutcome.NOT_FOUND


def test_docx_and_pptx(tmp_path):
    docx, pptx = pytest.importorskip("docx"), pytest.importorskip("pptx")
    document = docx.Document()
    document.add_paragraph("Before")
    document.add_table(rows=1, cols=2).rows[0].cells[1].text = "cell"
    document.save(str(tmp_path / "a.docx"))
    assert read(tmp_path / "a.docx") == "Before\n | cell"
    deck = pptx.Presentation()
    for title in ("First", "Second"):
        deck.slides.add_slide(deck.slide_layouts[5]).shapes.title.text = title
    deck.save(str(tmp_path / "a.pptx"))
    assert read(tmp_path / "a.pptx") == "Slide 1\nFirst\n\nSlide 2\nSecond"
    assert read(tmp_path / "a.pptx", "2") == "Slide 2 of 2\nSecond"
    assert outcome(tmp_path / "a.pptx", "3") is ToolOutcome.NOT_FOUND


def pdf(*texts):
    """Returns a PDF with one line of text a page, written by hand."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(texts)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(texts)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for n, text in enumerate(texts):
        stream = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET"
        font = "/Resources << /Font << /F1 3 0 R >> >>"
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] {font} /Contents {5 + 2 * n} 0 R >>")
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    out, places = io.StringIO(), []
    out.write("%PDF-1.4\n")
    for n, content in enumerate(objects, start=1):
        places.append(out.tell())
        out.write(f"{n} 0 obj\n{content}\nendobj\n")
    start = out.tell()
    out.write(f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n")
    out.write("".join(f"{place:010d} 00000 n \n" for place in places))
    out.write(f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n")
    return out.getvalue().encode()


def test_pdf(tmp_path):
    pytest.importorskip("pypdf")
    (tmp_path / "a.pdf").write_bytes(pdf("Hello", "World"))
    assert read(tmp_path / "a.pdf") == "Page 1\nHello\n\nPage 2\nWorld"
    assert read(tmp_path / "a.pdf", "2") == "Page 2 of 2\nWorld"
    assert outcome(tmp_path / "a.pdf", "0") is ToolOutcome.NOT_FOUND


def test_pictures_show_their_metadata(tmp_path):
    image = pytest.importorskip("PIL.Image")
    picture = image.new("RGB", (30, 20))
    exif = picture.getexif()
    exif[0x010E] = "A harbour"
    picture.save(tmp_path / "a.jpg", exif=exif)
    text = read(tmp_path / "a.jpg")
    assert text.splitlines()[:4] == ["format: JPEG", "width: 30", "height: 20", "mode: RGB"]
    assert "ImageDescription: A harbour" in text


def test_archives(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in/x.txt", "inside")
    assert read(tmp_path / "a.zip") == "in/x.txt | 6"
    assert read(tmp_path / "a.zip", "in/x.txt") == "inside"
    assert outcome(tmp_path / "a.zip", "y") is ToolOutcome.NOT_FOUND


@pytest.mark.parametrize("suffix", ["zip", "xlsx", "docx", "pptx"])
def test_zip_bombs_are_not_unpacked(tmp_path, suffix):
    path = tmp_path / f"bomb.{suffix}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", b"0" * 5_000_000)
    assert path.stat().st_size < 10_000
    assert outcome(path) is ToolOutcome.TOO_LARGE


@pytest.mark.parametrize("suffix", ["xlsx", "docx", "pptx", "zip", "pdf", "png", "json"])
@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04 cut", b"%PDF-1.4 cut", b"\x89PNG cut"])
def test_broken_files_are_unreadable(tmp_path, suffix, content):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content)
    assert outcome(path) is ToolOutcome.UNREADABLE


def test_other_failures(tmp_path):
    (tmp_path / "a.exe").write_bytes(b"MZ")
    assert outcome(tmp_path / "a.exe") is ToolOutcome.UNREADABLE
    (tmp_path / "big.txt").write_bytes(b"x" * 300_000)
    assert outcome(tmp_path / "big.txt") is ToolOutcome.TOO_LARGE
    assert outcome(tmp_path / "gone.txt") is ToolOutcome.UNREADABLE
    toolbox = Toolbox(FileReader({"a.txt": tmp_path / "a.txt"}).tools())
    assert toolbox.call("read_file", {"name": "b.txt"}).text == "no file 'b.txt'; there are: a.txt"
    with pytest.raises(ConfigError, match=r"files\.max_rows=0"):
        FileLimits(max_rows=0)
    json.dumps(toolbox.specs[0].to_json())
