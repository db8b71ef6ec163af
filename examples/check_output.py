#!/usr/bin/env python3
"""Runs an example in an empty folder; what it prints must be what its top comment says after "// Prints:".

    check_output.py main.cpp PROGRAM [ARGUMENT...]

Words must be equal and whole numbers too. A number with a point may differ by 5 % or by one in its last
digit, since processors round differently. A word of 16 or more hexadecimal digits stands for any such word,
equal ones for equal ones. A line that ends in "..." may go on in any way.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DECIMAL = re.compile(r"-?\d+\.(\d+)(?:e([+-]\d+))?")
DIGEST = re.compile(r"[0-9a-f]{16,}")


def expected_lines(source):
    comment = []
    for line in Path(source).read_text().splitlines():
        if not line.startswith("//"):
            break
        comment.append(line)
    if "// Prints:" not in comment:
        sys.exit(f"{source} has no '// Prints:' in the comment at its top")
    return [line[2:].strip() for line in comment[comment.index("// Prints:") + 1:] if line.strip() != "//"]


def equal(expected, actual, digests):
    wanted, found = DECIMAL.fullmatch(expected), DECIMAL.fullmatch(actual)
    if wanted and found:
        digit = 10.0 ** (int(wanted[2] or 0) - len(wanted[1]))
        a, b = float(expected), float(actual)
        return abs(a - b) <= max(0.05 * abs(a), 1.001 * digit)
    if DIGEST.fullmatch(expected) and DIGEST.fullmatch(actual):
        known = digests.setdefault(expected, actual) == actual
        return known and list(digests.values()).count(actual) == 1
    return expected == actual


def fits(expected, actual, digests):
    wanted, found = expected.split(), actual.split()
    if wanted[-1:] == ["..."]:
        wanted.pop()
        found = found[:len(wanted)]
    return len(wanted) == len(found) and all(equal(a, b, digests) for a, b in zip(wanted, found))


def main():
    source, *command = sys.argv[1:]
    expected = expected_lines(source)
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    actual = [line for line in run.stdout.splitlines() if line.strip()]
    digests = {}
    wrong = [f"  {a!r}\n    instead of {b!r}" for b, a in zip(expected, actual) if not fits(b, a, digests)]
    if run.returncode == 0 and len(actual) == len(expected) and not wrong:
        return
    print(run.stdout + run.stderr)
    print("\n".join(wrong))
    sys.exit(f"code {run.returncode}, {len(actual)} lines instead of {len(expected)}, {len(wrong)} wrong ones: "
             f"see {source}")


main()
