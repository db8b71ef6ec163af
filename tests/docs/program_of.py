#!/usr/bin/env python3
"""Writes a program that holds every C++ block of a page, to be compiled, never run.

    program_of.py PAGE.md PROGRAM.cpp

A block with a main() is taken as it is; any other stands in a function, with surroundings.hpp before it.
"""
import re
import sys
from pathlib import Path

LANGUAGES = {"bash", "cmake", "cpp", "json", "order", "python", ""}

page, program = map(Path, sys.argv[1:])
lines = ["#include \"docs/surroundings.hpp\""]
includes = []
inside = None
for number, line in enumerate(page.read_text().splitlines(), 1):
    fence = re.fullmatch(r"\s*```(.*)", line)
    if fence and inside is None:
        inside = fence[1]
        if inside not in LANGUAGES:
            sys.exit(f"{page}:{number}: the language {inside!r} of a block is none of {sorted(LANGUAGES)}")
        start, block = number, []
    elif fence:
        if inside == "cpp":
            whole = any(text.startswith("int main(") for text in block)
            scope = "namespace" if whole else "[[maybe_unused]] static void"
            lines.append(f"{scope} line_{start}{'' if whole else '()'} {{")
            lines += [f'#line {start + 1} "{page}"', *block, "}"]
        inside = None
    elif inside == "cpp" and line.startswith("#include <"):
        includes.append(line)
        block.append("")
    elif inside is not None:
        block.append(line)
program.write_text("\n".join(includes + lines) + "\n")
