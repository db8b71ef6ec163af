"""Runs the fuzz targets, each for some seconds, from the seeds and from what is too large to be kept.

usage: fuzz.py PROGRAMS CORPUS SECONDS

PROGRAMS: the folder with the targets; SECONDS: for all of them together. What is found stays in PROGRAMS/found, and new
inputs that reach new code in PROGRAMS/reached, from where the next run goes on.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

programs, corpus, seconds = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
here = pathlib.Path(__file__).parent
targets = ("safetensors", "manifest", "checkpoint")
ENVIRONMENT = {
    **os.environ,
    # Torch's own code is not instrumented, so that the bounds of a vector that it has grown are not known.
    "ASAN_OPTIONS": "detect_container_overflow=0:allocator_may_return_null=1",
    "LSAN_OPTIONS": f"suppressions={here / 'leaks.txt'}:print_suppressions=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "OMP_NUM_THREADS": "1",
}


def run(target, *arguments, deadline):
    command = [programs / f"fuzz_{target}", *arguments]
    with tempfile.TemporaryFile("w+") as output:
        try:
            code = subprocess.run(command, stdout=output, stderr=output, env=ENVIRONMENT, timeout=deadline).returncode
        except subprocess.TimeoutExpired:
            code = f"nothing: it did not end in {deadline} s"
        output.seek(0)
        text = output.read()
    if code != 0:
        sys.exit(f"{text[-20000:]}\nFAILED: {' '.join(map(str, command))} ended with {code}")
    return text


if not all((programs / f"fuzz_{target}").exists() for target in targets):
    print("not run: no clang++ with libFuzzer was found (packages clang and libclang-rt-dev)")
    sys.exit(77)
found = programs / "found"
found.mkdir(exist_ok=True)
with tempfile.TemporaryDirectory() as large:
    subprocess.run([sys.executable, here / "make_corpus.py", large, "--large"], check=True)
    for target in targets:
        reached = programs / "reached" / target
        reached.mkdir(parents=True, exist_ok=True)
        # Once each, whatever their size; then what grows from the small ones.
        run(target, *sorted(pathlib.Path(large, target).iterdir()), "-rss_limit_mb=4096", deadline=120)
        text = run(target, reached, corpus / target, f"-max_total_time={seconds // len(targets)}", "-max_len=8192",
                   "-timeout=10", "-rss_limit_mb=4096", f"-dict={here / 'words.dict'}", f"-artifact_prefix={found}/",
                   "-print_final_stats=1", deadline=seconds // len(targets) + 120)
        executed = [line.split()[-1] for line in text.splitlines() if "number_of_executed_units" in line]
        print(f"{target}: {executed[0]} inputs, nothing found", flush=True)
        if int(executed[0]) < 1000:
            sys.exit("FAILED: it hardly ran")
