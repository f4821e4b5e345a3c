"""The blocks of code in README.md."""

import re
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
SHOWN = {"text"}  # languages of what is only shown


@dataclass(frozen=True)
class Block:
    """section: its heading. number: among the section's blocks of this language, from 0."""

    section: str
    language: str
    number: int
    text: str

    def __str__(self):
        return f"{self.section}: {self.language} {self.number}"


def blocks():
    """All that is to be executed, in order."""
    found, section, counts = [], "", {}
    fence = None
    for line in README.read_text().splitlines():
        if fence is None and line.startswith("#"):
            section = line.lstrip("# ")
        elif fence is None and (begin := re.fullmatch(r"```(\w*)", line)):
            fence, lines = begin[1], []
            assert fence, f"a block in {section!r} does not say its language"
        elif line == "```":
            number = counts.get((section, fence), 0)
            counts[section, fence] = number + 1
            if fence not in SHOWN:
                found.append(Block(section, fence, number, "\n".join(lines) + "\n"))
            fence = None
        elif fence is not None:
            lines.append(line)
    return found


def block(section, language, number=0):
    (found,) = [b for b in blocks() if (b.section, b.language, b.number) ==
                (section, language, number)]  # fmt: skip
    return found
