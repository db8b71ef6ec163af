"""What holds for the sources as text: folders, headers, errors. Prints every breach; exits 1 if there is one.

    python3 tests/structure/check.py [REPOSITORY]
"""

import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
breaches = []
checks = 0


def require(holds, breach):
    global checks
    checks += 1
    if not holds:
        breaches.append(breach)


def includes(text):
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.M)


FOLDERS = ["base", "config", "tensors", "data", "optim", "ranks", "files", "watch", "loop", "hooks", "testing"]
WITHOUT_TORCH = ["base", "config", "watch"]
TORCH = ("torch/", "ATen/", "c10/")
sources = [p for top in ("include/lockstep", "src") for p in sorted((root / top).rglob("*.[ch]pp"))]
require(len(sources) > 50, "the sources were not found")

for path in sources:
    name = path.relative_to(root).as_posix()
    text = path.read_text()
    public = name.startswith("include/")
    folder = path.relative_to(root / ("include/lockstep" if public else "src")).parts[0]
    if public:
        require(text.count("\n") <= 300, f"{name} has more than 300 lines")
        require("#pragma once" in text, f"{name} has no #pragma once")
    for included in includes(text):
        if public:
            heavy = included in ("torch/torch.h", "torch/all.h") or included.startswith(("nlohmann/", "spdlog/", "fmt/"))
            require(not heavy, f"{name}, a public header, includes {included}")
        if folder not in FOLDERS:
            continue  # lockstep.hpp and testing.hpp may include anything of ours
        if folder in WITHOUT_TORCH:
            require(not included.startswith(TORCH), f"{name} is compiled without Torch but includes {included}")
        else:
            require(not included.startswith(("fmt/", "spdlog/")), f"{name} sees Torch and must not include {included}")
        target = included.removeprefix("lockstep/").split("/")[0]
        if included.startswith("lockstep/") and target not in FOLDERS and folder != "testing":
            require(False, f"{name} includes {included}, which includes everything")
        if target in FOLDERS:
            require(FOLDERS.index(target) <= FOLDERS.index(folder), f"{name} includes {included} from a later folder")

# An error has one id, which is thrown in the code, explained in the page, and provoked by a test.
code = set(re.findall(r'return\s*\{\s*"([a-z0-9-]+)"', "".join(path.read_text() for path in root.glob("src/base/*messages.cpp"))))
page = set(re.findall(r"^\| `([a-z0-9-]+)` \|", (root / "docs/errors.md").read_text(), re.M))
tests = "".join(p.read_text() for top in ("tests", "examples") for p in (root / top).rglob("*.[ch]pp"))
require(len(code) > 30, "the error ids were not found in src/base/messages.cpp")
for error in sorted(code | page):
    require(error in page, f"error {error} is not in docs/errors.md")
    require(error in code, f"error {error} of docs/errors.md is not in the code")
    require(re.search(rf"(?<![a-z-]){error}(?![a-z-])", tests), f"no test provokes error {error}")

# The map names every public header.
source_map = (root / "docs/source-map.md").read_text()
for path in sorted((root / "include/lockstep").glob("*/*.hpp")):
    if path.parent.name != "testing":
        require(f"`{path.stem}`" in source_map, f"docs/source-map.md does not name {path.parent.name}/{path.stem}")

def prose(page):
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)


def anchors(page):
    """The names that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


for page in (root / "README.md", *(root / "docs").glob("*.md")):
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", prose(page)):
        target = page.parent / link if link else page
        require(target.exists(), f"{page.name} links to {link}, which is not there")
        if anchor and target.exists():
            require(anchor in anchors(target), f"{page.name} links to {link}#{anchor}, a heading that is not there")
    for row, next_row in re.findall(r"\n\n(\|[^\n]*)\n([^\n]*)", prose(page)):
        require(re.fullmatch(r"[| :-]+", next_row), f"{page.name}: the table does not begin with a heading: {row}")

for page, program in (("README.md", "minimal"), ("docs/quickstart.md", "quickstart")):
    require((root / f"examples/{program}/main.cpp").read_text() in (root / page).read_text(),
            f"the program in {page} is not examples/{program}/main.cpp")

for breach in breaches:
    print(breach)
print(f"{checks} checks, {len(breaches)} breaches")
sys.exit(bool(breaches))
