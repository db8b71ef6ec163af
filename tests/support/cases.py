"""Runs the functions of a test program whose names begin with test_, each a case."""

import subprocess
import sys


class Failed(Exception):
    pass


def check(condition, what):
    if not condition:
        raise Failed(what)


def run_cases(program, at_least):
    """Runs the cases among the names of `program`; ends with 1 if one fails or there are fewer than `at_least`."""
    failed = []
    cases = [(name, case) for name, case in program.items() if name.startswith("test_")]
    for name, case in cases:
        try:
            case()
            print(f"passed: {name}", flush=True)
        except (Failed, subprocess.TimeoutExpired) as failure:
            failed.append(name)
            print(f"FAILED: {name}: {failure}", flush=True)
    print(f"{len(cases)} cases, {len(failed)} failed")
    sys.exit(bool(failed) or len(cases) < at_least)
