"""Reading files of many kinds as text, within limits: tables, documents, slides, archives, pictures' metadata.

The readers of xlsx, docx, pptx, pdf and pictures are well-kept libraries (extra `files`); each is imported when the
first such file is read. A file that is broken, too large, or a bomb is an outcome of the call.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib
import io
import json
import os
import pathlib
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

from sage_jax.errors import ConfigError
from sage_jax.tools.base import Tool, ToolFailure, ToolOutcome, ToolSpec

_TEXT_KINDS = ".txt .md .py .js .xml .html .htm .yaml .yml .toml .ini .log .rst .tex .pdb .jsonl .jsonld".split()
_ZIPPED = (".xlsx", ".docx", ".pptx", ".zip")


@dataclasses.dataclass(frozen=True)
class FileLimits:
    """Limits of one reader. Raises ConfigError naming the field.

    Attributes:
      max_bytes: largest file.
      max_unpacked: most bytes that a zipped file (xlsx, docx, pptx, zip) may say it unpacks to.
      max_rows: rows of a table, pages of a document, entries of an archive shown at most.
    """

    max_bytes: int = 20 * 1024 * 1024
    max_unpacked: int = 100 * 1024 * 1024
    max_rows: int = 400

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) <= 0:
                raise ConfigError(f"files.{field.name}={getattr(self, field.name)} must be above 0")


class FileReader:
    """Reads the files of one episode and no others."""

    def __init__(self, files: Mapping[str, str | os.PathLike[str]], limits: FileLimits | None = None):
        """Takes the files by the name an agent knows them by."""
        self._files = {name: pathlib.Path(path) for name, path in files.items()}
        self._limits = limits or FileLimits()

    def read_file(self, name: str, part: str = "") -> str:
        """Returns a file as text.

        Args:
          name: as in the list of files.
          part: a sheet's name, a page's number, an entry of an archive; empty shows all that fits.

        Raises:
          ToolFailure: no such file or part, or one that cannot be read.
        """
        path = self._files.get(name.strip())
        if path is None:
            known = ", ".join(self._files) or "none"
            raise ToolFailure(ToolOutcome.NOT_FOUND, f"no file {name[:80]!r}; there are: {known}")
        return self._read(path, part.strip())

    def tools(self) -> list[Tool]:
        """Returns `read_file`."""
        spec = ToolSpec(
            "read_file",
            "Read a file as text: csv, xlsx, json, txt, pdf, docx, pptx, zip, or the metadata of a picture.",
            {"name": ("string", "the file's name"), "part": ("string", "sheet, page number or archive entry")},
            frozenset({"part"}),
        )
        return [Tool(spec, self.read_file)]

    def _read(self, path: pathlib.Path, part: str) -> str:
        suffix = path.suffix.lower()
        reader = _READERS.get(suffix)
        if reader is None:
            raise ToolFailure(ToolOutcome.UNREADABLE, f"{path.name}: there is no reader for {suffix or 'this kind'}")
        try:
            size = path.stat().st_size
            if size > self._limits.max_bytes:
                raise ToolFailure(
                    ToolOutcome.TOO_LARGE, f"{path.name} has {size} bytes; {self._limits.max_bytes} can be read"
                )
            if suffix in _ZIPPED:
                _check_bomb(path, self._limits)
            return reader(path, part, self._limits)
        except ImportError as error:
            message = f"{path.name}: reading {suffix} needs the package {error.name} (pip install sage-jax[files])"
            raise ToolFailure(ToolOutcome.UNREADABLE, message) from error
        except MemoryError as error:
            raise ToolFailure(ToolOutcome.TOO_LARGE, f"{path.name} needs too much memory") from error
        except ToolFailure:
            raise
        except Exception as error:  # the edge to parsers, which raise anything for a broken file
            message = f"{path.name} cannot be read: {type(error).__name__}: {str(error)[:200]}"
            raise ToolFailure(ToolOutcome.UNREADABLE, message) from error


def _check_bomb(path: pathlib.Path, limits: FileLimits) -> None:
    """Refuses an archive that says it unpacks to more than is allowed; zipfile reads no more than an entry says."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > limits.max_unpacked:
        raise ToolFailure(
            ToolOutcome.TOO_LARGE, f"{path.name} unpacks to {unpacked} bytes; {limits.max_unpacked} are allowed"
        )


def _read_text(path: pathlib.Path, part: str, limits: FileLimits) -> str:
    return path.read_bytes().decode("utf-8-sig", "replace")


def _read_json(path: pathlib.Path, part: str, limits: FileLimits) -> str:
    return json.dumps(json.loads(_read_text(path, part, limits)), ensure_ascii=False, indent=1)


def _read_csv(path: pathlib.Path, part: str, limits: FileLimits) -> str:
    text = _read_text(path, part, limits)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(text)
    return _table(csv.reader(io.StringIO(text), delimiter=delimiter), limits)


def _delimiter(text: str) -> str:
    first = text.split("\n", 1)[0]
    return max(",;\t", key=first.count)


def _table(rows: Any, limits: FileLimits) -> str:
    """Returns rows as lines of cells joined by " | "."""
    lines, left = [], 0
    for row in rows:
        if len(lines) < limits.max_rows:
            lines.append(" | ".join("" if cell is None else str(cell) for cell in row))
        else:
            left += 1
    return "\n".join(lines) + (f"\n[{left} more rows]" if left else "")


def _read_xlsx(path: pathlib.Path, part: str, limits: FileLimits) -> str:
    openpyxl = importlib.import_module("openpyxl")
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        names = book.sheetnames
        if part and part not in names:
            raise ToolFailure(ToolOutcome.NOT_FOUND, f"{path.name} has no sheet {part!r}; it has {', '.join(names)}")
        sheets = [part] if part else names
        return "\n\n".join(f"Sheet {name}\n{_table(book[name].values, limits)}" for name in sheets)
    finally:
        book.close()


def _read_docx(path: pathlib.Path, part: str, limits: FileLimits) -> str:
    document = importlib.import_module("docx").Document(os.fspath(path))
    blocks = []
    for block in document.iter_inner_content():
        if hasattr(block, "rows"):
            blocks.append(_table(([cell.text for cell in row.cells] for row in block.rows), limits))
        else:
            blocks.append(block.text)
    return "\n".join(blocks)


def _read_pptx(path: pathlib.Path, part: str, limits: FileLimits) -> str:
    deck = importlib.import_module("pptx").Presentation(os.fspath(path))
    slides = []
    for slide in deck.slides:
        texts = []
        for shape in slide.shapes:
            if shape.has_text_frame:
                texts.append(shape.text_frame.text)
            elif getattr(shape, "has_table", False) and shape.has_table:
                texts.append(_table(([cell.text for cell in row.cells] for row in shape.table.rows), limits))
        slides.append("\n".join(texts))
    return _pages(slides, "Slide", part, path, limits)


def _read_pdf(path: pathlib.Path, part: str, limits: FileLimits) -> str:
    reader = importlib.import_module("pypdf").PdfReader(path)
    wanted = len(reader.pages) if not part else 0
    count = min(wanted, limits.max_rows)
    if part:
        number = _page_number(part, len(reader.pages), path)
        return f"Page {number} of {len(reader.pages)}\n{reader.pages[number - 1].extract_text()}"
    return _pages([reader.pages[n].extract_text() for n in range(count)], "Page", "", path, limits)


def _pages(pages: list[str], word: str, part: str, path: pathlib.Path, limits: FileLimits) -> str:
    if part:
        number = _page_number(part, len(pages), path)
        return f"{word} {number} of {len(pages)}\n{pages[number - 1]}"
    shown = [f"{word} {number}\n{text}" for number, text in enumerate(pages[: limits.max_rows], start=1)]
    return "\n\n".join(shown) or f"[{path.name} has no {word.lower()}]"


def _page_number(part: str, count: int, path: pathlib.Path) -> int:
    if not part.isdigit() or not 1 <= int(part) <= count:
        raise ToolFailure(ToolOutcome.NOT_FOUND, f"{path.name} has no part {part[:40]!r}; numbers go from 1 to {count}")
    return int(part)


def _read_zip(path: pathlib.Path, part: str, limits: FileLimits) -> str:
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        if not part:
            return _table(([entry.filename, entry.file_size] for entry in entries.values()), limits)
        if part not in entries:
            raise ToolFailure(ToolOutcome.NOT_FOUND, f"{path.name} has no entry {part[:80]!r}")
        with archive.open(entries[part]) as file:
            return file.read(limits.max_bytes).decode("utf-8", "replace")


def _read_picture(path: pathlib.Path, part: str, limits: FileLimits) -> str:
    module = importlib.import_module("PIL.Image")
    tags = importlib.import_module("PIL.ExifTags").TAGS
    with module.open(path) as picture:  # reads the header; pixels are never decoded
        lines = {"format": picture.format, "width": picture.width, "height": picture.height, "mode": picture.mode}
        lines |= {tags.get(number, str(number)): value for number, value in picture.getexif().items()}
        lines |= {f"text {key}": value for key, value in getattr(picture, "text", {}).items()}
    return "\n".join(f"{name}: {str(value)[:300]}" for name, value in lines.items())


_READERS: dict[str, Callable[[pathlib.Path, str, FileLimits], str]] = {
    **dict.fromkeys(_TEXT_KINDS, _read_text),
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".xlsx": _read_xlsx,
    ".docx": _read_docx,
    ".pptx": _read_pptx,
    ".pdf": _read_pdf,
    ".zip": _read_zip,
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff"), _read_picture),
}
