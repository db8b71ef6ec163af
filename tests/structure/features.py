"""Every test that docs/features.md names is registered in CTest, and every test case in the program that CTest runs.

    python3 tests/structure/features.py REPOSITORY BUILD_FOLDER CTEST

A file of test cases is one CTest test, which runs all of them. Prints every breach; exits 1 if there is one.
"""

import functools
import json
import pathlib
import re
import subprocess
import sys

root, build, ctest = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
breaches = []
cases = 0


def output_of(command):
    # Catch2 2 exits with the number of cases it lists.
    return subprocess.run(command, cwd=build, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


@functools.cache
def cases_of(program):
    names = output_of([program, "--list-test-names-only"])  # Catch2 2
    return set((names or output_of([program, "--list-tests", "--verbosity", "quiet"])).splitlines())


def is_case(test, name):
    source = root / "tests" / f"{test}.cpp"
    # A literal too long for a line is written in two.
    text = re.sub(r'"\s*\n\s*"', "", source.read_text()) if source.is_file() else ""
    # CTest leaves out what has a tag that begins with a dot. A template's cases are called "<name> - <type>".
    written = re.search(rf'CATCH_(TEMPLATE_)?TEST_CASE\(\s*"{re.escape(name)}"(,\s*"(?!\[[.!])[^"]*")?[,)]', text)
    if written is None:
        return False
    listed_names = cases_of(commands[test][0])
    return any(n.startswith(f"{name} - ") for n in listed_names) if written[1] else name in listed_names


listed = json.loads(output_of([ctest, "--show-only=json-v1"]))["tests"]
commands = {test["name"]: test["command"] for test in listed if "command" in test}

rows = re.findall(r"^\| ([A-Z])(\d+) \| (.+?) \| (.+?) \| (.*?) ?\|$", (root / "docs/features.md").read_text(), re.M)
numbers = {}
for area, number, feature, spelling, tests in rows:
    numbers.setdefault(area, []).append(int(number))
    named = re.findall(r"`([^`]+)` ?(.*)", tests.replace("<br>", "\n"))
    if not named and not spelling.startswith(("not yet", "left out")):
        breaches.append(f"{area}{number}: no test")
    for test, name in named:
        cases += bool(name)
        if test not in commands:
            breaches.append(f"{area}{number}: CTest has no test {test}")
        elif bool(name) != test.startswith(("unit/", "cases/", "invariants/", "ranks/", "reference/")):
            breaches.append(f"{area}{number}: {test} needs a test case" if not name else f"{test} has no cases")
        elif name and not is_case(test, name):
            breaches.append(f'{area}{number}: {test} has no test case "{name}"')
for area, found in numbers.items():
    if found != list(range(1, len(found) + 1)):
        breaches.append(f"area {area} does not count 1, 2, 3, ...")
if cases < 100:
    breaches.append("the test cases were not found in docs/features.md")

for breach in breaches:
    print(breach)
print(f"{len(rows)} features, {cases} test cases, {len(breaches)} breaches")
sys.exit(bool(breaches))
