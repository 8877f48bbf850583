"""Gives Doxygen the comments of our headers in its own form: doxygen_filter.py HEADER

The headers are written to be read: comments begin with // (in C with /*), indented lines are code, and a comment stands
over one or several declarations, up to the next blank line.
"""

import re
import sys
from pathlib import Path


def escaped(text: str) -> str:
    """Without what Doxygen would take for its own or HTML's, apart from code in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"(?<!\w)::", r"\\::", parts[i])
        parts[i] = re.sub(r"[<>&@#%]", lambda found: "\\" + found.group(), parts[i])
    return "".join(parts)


def documented(comment: list[str], of_file: bool) -> list[str]:
    """A block of comment lines, without their //."""
    out = ["/// \\file"] if of_file else []
    code = False
    blanks: list[str] = []
    for line in comment:
        if not line.strip():
            blanks.append("///")
            continue
        indented = line.startswith("  ") and not line.lstrip().startswith("- ")
        if indented and not code and out and not blanks and not of_file:
            indented = False  # a line of a list goes on
        if code and not indented:
            out.append("/// \\endcode")
        out += blanks
        blanks = []
        if indented and not code:
            out.append("/// \\code{.cpp}")
        code = indented
        out.append("/// " + (line if code else escaped(line.strip())))
    if code:
        out.append("/// \\endcode")
    return out


def with_trailing(lines: list[str]) -> list[str]:
    """Lines of code, whose comments behind the code are about what stands there; they may go on below, in their column."""
    out: list[str] = []
    column = 0
    for line in lines:
        match = re.match(r"(\s*\S.*?[;,({\w}])(\s+)// (?!namespace|NOLINT|IWYU|private)(.*)$", line)
        if match and '"' not in match.group(1):
            column = len(match.group(1) + match.group(2))
            out.append(f"{match.group(1)}  ///< {escaped(match.group(3))}")
        elif column and re.match(rf"\s{{{column}}}// ", line):
            out.append(" " * column + f"///< {escaped(line.strip()[3:])}")
        else:
            column = 0
            out.append(line)
    return out


def of_c(text: str) -> str:
    """Comments of C in the form of those of C++."""
    lines = []
    inside = False
    for line in text.split("\n"):
        if inside or re.match(r"\s*/\*", line):
            inside = "*/" not in line
            words = re.sub(r"^\s*/?\*+(?!/)|\*/\s*$", "", line).rstrip()
            line = "" if words.lstrip().startswith("----") else re.match(r"\s*", line).group() + "//" + words
        else:
            line = re.sub(r"/\* (.*?) \*/$", r"// \1", line)
        lines.append(line)
    return "\n".join(lines)


def of_cpp(text: str) -> str:
    lines = text.split("\n")
    out: list[str] = []
    i = 0
    first = True
    while i < len(lines):
        begin = i
        comment = []
        while i < len(lines) and (found := re.match(r"\s*//(?: (.*)|(.*))$", lines[i])):
            comment.append(found.group(1) or found.group(2) or "")
            i += 1
        paragraph = i
        while i < len(lines) and lines[i].strip() and not re.match(r"\s*//", lines[i]):
            i += 1
        while i < len(lines) and re.match(r"\s{30,}//", lines[i]):  # goes on behind code
            i += 1
        code = lines[paragraph:i]
        if comment and not comment[0].startswith("----"):
            out += documented(comment, first)
            first = False
            # Several declarations under one comment: a group whose members all have it.
            joined = "\n".join(code)
            ends = len(re.findall(r"(?:;|\})[ \t]*(?://.*)?$", joined, flags=re.MULTILINE))
            plain = not re.match(r"\s*(template|typedef|class|struct|enum|namespace|private|#)", joined)
            if plain and ends > 1 and joined.count("{") == joined.count("}"):
                out += ["/// @{", *with_trailing(code), "/// @}"]
                continue
        out += with_trailing(code)
        if i == begin:
            out.append(lines[i])
            i += 1
    return "\n".join(out)


def main() -> None:
    path = Path(sys.argv[1])
    text = path.read_text()
    sys.stdout.write(of_cpp(of_c(text) if path.name == "c.h" else text))


if __name__ == "__main__":
    main()
