"""Every public header compiles alone, and lockstep.hpp adds little to what a user's file includes anyway.

    python3 tests/structure/headers.py REPOSITORY COMPILER [FLAG...]      FLAG: the include folders of Torch, -std

A header that is the first include of a source file was compiled alone with it, and so was the first include of a header
that compiles alone. The rest are compiled here, but the parts of testing.hpp, which are included through it. Exits 1 if
one fails, or if lockstep.hpp costs too much.
"""

import pathlib
import re
import subprocess
import sys

root = pathlib.Path(sys.argv[1]).resolve()
compiler = [*sys.argv[2:], f"-I{root / 'include'}", "-x", "c++", "-"]
failures = 0

# Preprocessed lines with lockstep.hpp over those without. A user's file may take 1.25 times as long to compile; lines
# are what can be counted alike on every machine, and are a far smaller part.
MOST_LINES = 1.05
USERS_HEADERS = ["torch/torch.h"], ["torch/nn/module.h", "torch/optim/optimizer.h"]


def run(options, headers):
    source = "".join(f"#include <{header}>\n" for header in headers)
    return subprocess.run([compiler[0], *options, *compiler[1:]], input=source, capture_output=True, text=True)


def first_include(path):
    found = re.search(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.M)
    return found[1] if found else None


def add_with_first_includes(header, compiled):
    while header in headers and header not in compiled:
        compiled.add(header)
        header = first_include(root / "include" / header)


headers = [p.relative_to(root / "include").as_posix() for p in sorted((root / "include").rglob("*.hpp"))]
headers = [header for header in headers if not header.startswith("lockstep/testing/")]
compiled = set()
for source in [*sorted((root / "src").rglob("*.cpp")), root / "tests/package/stranger/main.cpp"]:
    add_with_first_includes(first_include(source), compiled)
print(f"{len(compiled)} of {len(headers)} headers are compiled alone with the library")

# From the headers that include most to those that include least, so that few are left to compile.
for header in sorted(headers, key=lambda h: -(root / "include" / h).read_text().count('#include "lockstep/')):
    if header in compiled:
        continue
    result = run(["-fsyntax-only", "-Wall", "-Wextra", "-Werror"], [header])
    print(f"{header}: {'failed' if result.returncode else 'compiles alone'}\n{result.stderr}", end="")
    failures += result.returncode != 0
    add_with_first_includes(header, compiled)

for users in USERS_HEADERS:
    lines = [run(["-E"], included).stdout.count("\n") for included in (users, [*users, "lockstep/lockstep.hpp"])]
    ratio = lines[1] / lines[0]
    print(f"{' + '.join(users)}: {lines[0]} lines, {ratio:.3f} times as many with lockstep.hpp, at most {MOST_LINES}")
    failures += not (1 < ratio <= MOST_LINES)
sys.exit(failures > 0)
