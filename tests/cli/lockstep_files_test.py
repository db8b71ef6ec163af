"""What the commands of `lockstep` on checkpoints promise, case by case.

usage: lockstep_files_test.py LOCKSTEP

The checkpoints are written by Python, and every number is compared with one that numpy or Torch has calculated.
"""

import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy
import safetensors.torch
import torch

from checkpoints import write_checkpoint

sys.path.append(str(pathlib.Path(__file__).parents[1] / "support"))
from cases import check, run_cases

LOCKSTEP = sys.argv[1]
DEADLINE = 60
FOLDER = tempfile.TemporaryDirectory()
COMMANDS = ("inspect", "verify", "diff", "list", "prune", "export", "average")


def lockstep(*arguments, code=0, **popen):
    """Runs the program, which must end with this code; .out and .err are what it has printed."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run([LOCKSTEP, *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE,
                          env=environment, **popen)
    check(done.returncode == code, f"{arguments} ended with {done.returncode}: {done.stdout} {done.stderr}")
    done.out, done.err = done.stdout, done.stderr
    return done


def new_folder():
    return pathlib.Path(tempfile.mkdtemp(dir=FOLDER.name))


def weights(step):
    """Of a model: values that are exact in every type."""
    return {"layer.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3) + step,
            "layer.bias": torch.tensor([0.5, -step, 4.0]),
            "half": torch.tensor([1.0, 2.0 * step], dtype=torch.bfloat16),
            "batches": torch.tensor(7 * step)}


def files_of(step):
    return {"model": weights(step), "ema": {name: value / 2 for name, value in weights(step).items()
                                            if value.is_floating_point()},
            "optimizer": {"layer.weight/exp_avg": torch.ones(2, 3) * step},
            "rank-00000": {"generator": torch.arange(5, dtype=torch.uint8)}}


def checkpoints(steps, root=None, **named):
    """A folder of checkpoints; `named`: which step a name leads to."""
    root = root or new_folder() / "checkpoints"
    for step in steps:
        write_checkpoint(root / f"step-{step:08}", step, files_of(step))
    for name, step in named.items():
        (root / name).symlink_to(f"step-{step:08}")
    return root


def change_byte(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def rows(text):
    return [line.split() for line in text.splitlines()]


# ---- inspect ----


def test_inspect_shows_every_tensor_with_its_norm():
    root = checkpoints([20], last=20)
    shown = json.loads(lockstep("inspect", root / "last", "--json").out)
    check(shown["path"] == str(root / "last"), shown["path"])
    check(shown["manifest"]["state"]["step"] == 20 and shown["manifest"]["config"]["epochs"] == 4, shown["manifest"])
    found = {file["name"]: file for file in shown["files"]}
    check(sorted(found) == sorted(f"{name}.safetensors" for name in files_of(20)), sorted(found))
    types = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64", torch.uint8: "U8"}
    for name, tensors in files_of(20).items():
        file = found[f"{name}.safetensors"]
        check(file["bytes"] == (root / "last" / file["name"]).stat().st_size, file)
        entries = {entry["name"]: entry for entry in file["tensors"]}
        check(entries.keys() == tensors.keys(), entries.keys())
        for key, value in tensors.items():
            norm = float(numpy.linalg.norm(value.double().numpy().ravel()))
            expected = {"name": key, "dtype": types[value.dtype], "shape": list(value.shape)}
            check({k: entries[key][k] for k in expected} == expected, (entries[key], expected))
            check(abs(entries[key]["norm"] - norm) <= 1e-14 * norm, (entries[key], norm))
    text = lockstep("inspect", root / "last").out
    for line in (["step", "20"], ["epochs", "4"], ["F32", "[2,", "3]", f"{numpy.linalg.norm(numpy.arange(6) + 20.0):.6g}", "layer.weight"]):
        check(line in rows(text), (line, text))
    check(all(len(line) <= 80 for line in text.splitlines() if str(root) not in line), text)


def test_inspect_leaves_out_a_section_that_is_empty():
    path = write_checkpoint(new_folder() / "step-00000001", 1, files_of(1), metadata={}, monitor={"metric": "loss"})
    titles = [line for line in lockstep("inspect", path).out.splitlines() if line and line[0] != " "]
    check("monitor" in titles and "metadata" not in titles, titles)


def test_inspect_reads_weights_files_and_names_what_is_not_finite():
    path = new_folder() / "model.safetensors"
    values = {"a": torch.tensor([float("inf")]), "b": torch.tensor([float("nan")]), "c": torch.zeros(0, 3),
              "evil\x1b[2J": torch.ones(4)}
    safetensors.torch.save_file(values, path)
    file = json.loads(lockstep("inspect", path, "--json").out)["files"][0]
    check({entry["name"]: entry["norm"] for entry in file["tensors"]} ==
          {"a": "inf", "b": "nan", "c": 0.0, "evil\x1b[2J": 2.0}, file)
    text = lockstep("inspect", path).out
    check("\x1b" not in text and r"evil\u001b[2J" in text, text)


def test_a_folder_of_checkpoints_stands_for_its_newest_valid_one():
    root = checkpoints([10, 20])
    change_byte(root / "step-00000020" / "ema.safetensors", -1)
    done = lockstep("inspect", root, "--json")
    check(json.loads(done.out)["manifest"]["state"]["step"] == 10, done.out)
    check("step-00000020 is passed over" in done.err, done.err)
    check(f"the newest valid checkpoint of {root} is step-00000010" in done.err, done.err)
    change_byte(root / "step-00000010" / "model.safetensors", -1)
    check("[no-valid-checkpoint]" in lockstep("inspect", root, code=2).err, "no error")


# ---- verify ----


def test_verify_names_file_and_tensor_of_each_damaged_checkpoint():
    root = checkpoints([10, 20, 30], best=10)
    check(rows(lockstep("verify", root, root / "best").out) ==
          [["whole", f"{root}/step-000000{step}"] for step in (30, 20, 10)] + [["whole", f"{root}/best"]], "verify")
    change_byte(root / "step-00000020" / "optimizer.safetensors", -1)
    (root / "step-00000030" / "rank-00000.safetensors").unlink()
    done = lockstep("verify", root, code=1)
    check([row[0] for row in rows(done.out)] == ["damaged", "damaged", "whole"], done.out)
    check('optimizer.safetensors is damaged: the checksum of tensor "layer.weight/exp_avg"' in done.err, done.err)
    check("rank-00000.safetensors is damaged: it is missing" in done.err, done.err)


def test_checkpoints_without_checksums_of_tensors_are_whole_or_damaged_too():
    folder = write_checkpoint(new_folder() / "step-00000001", 1, files_of(1), tensor_checksums=False)
    lockstep("verify", folder)
    change_byte(folder / "model.safetensors", -1)
    check("model.safetensors is damaged: its checksum differs" in lockstep("verify", folder, code=1).err, "verify")


# ---- diff ----


def test_diff_of_equal_checkpoints_ends_with_0_whatever_the_run():
    root = new_folder()
    a = write_checkpoint(root / "a", 5, files_of(5))
    b = write_checkpoint(root / "b", 5, files_of(5), run_id="another")
    text = lockstep("diff", a, b).out
    check("equal: 9 tensors, bit for bit" in text, text)


def test_diff_measures_what_differs():
    root = new_folder()
    a, b = files_of(5), files_of(5)
    b["model"]["layer.weight"][1] += torch.tensor([3.0, 0.0, -4.0])
    b["model"]["extra"] = torch.ones(1)
    b["optimizer"]["layer.weight/exp_avg"] = torch.ones(6)
    b["ema"]["half"] = torch.tensor([float("nan"), 5.0], dtype=torch.bfloat16)
    write_checkpoint(root / "a", 5, a)
    write_checkpoint(root / "b", 5, b, config={"epochs": 6, "max_grad_norm": 1.0, "note": [1]})
    text = lockstep("diff", root / "a", root / "b", code=1).out
    norms = [numpy.linalg.norm(files["model"]["layer.weight"].double().numpy()) for files in (a, b)]
    for line in (["config.epochs", "4", "6"], ["config.note.0", "absent", "1"],
                 ["2", "4", "5", f"{5 / max(norms):.6g}", "layer.weight"], ["only", "in", "B", "extra"],
                 ["kind", "layer.weight/exp_avg:", "F32", "[2,", "3],", "F32", "[6]"], ["1", "nan", "nan", "nan", "half"]):
        check(line in rows(text), (line, text))
    check("model.safetensors: a difference in 2 tensors" in text and "rank-00000" not in text, text)
    check("layer.bias" not in text, text)


def test_diff_beside_a_weights_file_compares_the_raw_weights():
    root = checkpoints([10])
    path = root / "model.safetensors"
    safetensors.torch.save_file(weights(10), path)
    check("equal: 4 tensors" in lockstep("diff", root / "step-00000010", path).out, "diff")
    safetensors.torch.save_file({**weights(10), "layer.bias": torch.zeros(3)}, path)
    check("layer.bias" in lockstep("diff", path, root / "step-00000010", code=1).out, "diff")


def test_diff_cannot_take_a_damaged_checkpoint_for_a_different_one():
    root = checkpoints([10, 20])
    change_byte(root / "step-00000020" / "model.safetensors", -1)
    done = lockstep("diff", root / "step-00000010", root / "step-00000020", code=2)
    check(done.out == "" and "[damaged-checkpoint]" in done.err, done)


# ---- list ----


def test_list_is_newest_first_with_names_and_what_is_unreadable_last():
    root = checkpoints([8, 9, 10], best=8, last=10)
    (root / "step-00000009" / "manifest.json").unlink()
    (root / "notes").mkdir()
    text = lockstep("list", root).out
    size = sum(path.stat().st_size for path in (root / "step-00000010").iterdir() if path.suffix == ".safetensors")
    check(rows(text)[:4] == [["step", "epoch", "batches", "size", "run", "folder", "names"],
                             ["10", "1", "20", str(size), "B", "3f2a9c01", "step-00000010", "last"],
                             ["8", "0", "16", str(size), "B", "3f2a9c01", "step-00000008", "best"],
                             ["?", "?", "?", "?", "?", "step-00000009"]], text)
    check("unreadable: [damaged-checkpoint]" in text and "manifest.json is damaged: it is missing" in text, text)
    listed = json.loads(lockstep("list", root, "--json").out)
    check([entry.get("step") for entry in listed] == [10, 8, None], listed)
    check(listed[0]["names"] == ["last"] and listed[0]["bytes"] == size, listed)
    check(listed[0]["run_id"] == "3f2a9c01d4e5" and listed[0]["epoch"] == 1 and listed[0]["batches"] == 20, listed)
    check([entry["readable"] for entry in listed] == [True, True, False], listed)
    check("no checkpoints in" in lockstep("list", root / "notes").out, "an empty folder")


# ---- prune ----


def left_in(root):
    return sorted(path.name for path in root.iterdir() if not path.name.startswith("."))


def test_prune_keeps_the_newest_of_each_run_and_what_is_named_or_strange():
    root = checkpoints([1, 2, 3, 4, 5, 6], best=2, last=6)
    for step in (3, 4):
        write_checkpoint(root / f"step-{step:08}-2", step, files_of(step), run_id="another")
    (root / "step-00000001" / "notes.txt").write_text("mine")
    change_byte(root / "step-00000003" / "manifest.json", 20)
    (root / "step-00000004.bak").mkdir()
    before = left_in(root)
    expected = ["step-00000003-2", "step-00000004"]
    done = lockstep("prune", root, "--keep", 2, "--dry-run")
    check(sorted(rows(done.out)) == [["would", "remove", f"{root}/{name}"] for name in expected[1:]], done.out)
    check(left_in(root) == before, left_in(root))
    done = lockstep("prune", root.name, "--keep", 1, cwd=root.parent)
    removed = (*expected, "step-00000005")
    check(sorted(rows(done.out)) == [["removed", f"{root.name}/{name}"] for name in removed], done.out)
    check(left_in(root) == [name for name in before if name not in (*expected, "step-00000005")], left_in(root))
    check(lockstep("prune", root, "--keep", 1).out == "nothing to remove\n", "a second time")


def test_prune_never_removes_the_last_valid_one():
    root = checkpoints([1, 2, 3])
    change_byte(root / "step-00000003" / "model.safetensors", -1)
    lockstep("prune", root, "--keep", 0)
    check(left_in(root) == ["step-00000002"], left_in(root))
    lockstep("verify", root)


def test_prune_refuses_a_folder_that_a_program_saves_to_and_one_that_is_not_there():
    root = checkpoints([1, 2])
    with open(root / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        check("[checkpoint-directory-in-use]" in lockstep("prune", root, "--keep", 1, code=2).err, "prune")
    check(left_in(root) == ["step-00000001", "step-00000002"], left_in(root))
    absent = root / "absent"
    for command in (("prune", absent, "--keep", 1), ("prune", absent, "--keep", 1, "--dry-run"), ("list", absent)):
        check("[checkpoint-not-found]" in lockstep(*command, code=2).err, command)
    check(not absent.exists(), "prune made a folder")


# ---- export, average ----


def test_exported_weights_are_those_that_were_asked_for():
    root = checkpoints([10], last=10)
    for options, expected in (([], files_of(10)["model"]), (["--weights", "raw"], files_of(10)["model"]),
                              (["--weights", "ema"], files_of(10)["ema"])):
        path = new_folder() / "a" / "model.safetensors"
        lockstep("export", root / "last", *options, "--to", path)
        check_equal(safetensors.torch.load_file(path), expected)


def test_weights_that_are_not_there_are_refused():
    folder = write_checkpoint(new_folder() / "step-00000001", 1, {"model": weights(1)})
    to = folder.parent / "model.safetensors"
    check("[no-averaged-weights]" in lockstep("export", folder, "--weights", "ema", "--to", to, code=2).err, "ema")
    check("[unknown-weights-format]" in lockstep("export", folder, "--to", folder / "model.bin", code=2).err, "bin")
    check(not to.exists(), "a file was written")


def check_equal(found, expected):
    check(found.keys() == expected.keys(), (found.keys(), expected.keys()))
    for name, value in expected.items():
        check(found[name].dtype == value.dtype and torch.equal(found[name], value), (name, found[name], value))


def test_an_average_is_summed_in_double_and_rounded_once():
    root = new_folder()
    torch.manual_seed(1)
    given = [{"w": torch.randn(50, 3) * 10**power, "half": torch.randn(40).bfloat16(), "double": torch.randn(4).double(),
              "count": torch.tensor(power)} for power in (0, 3, 6)]
    given[1]["double"] = given[1]["double"] * 1e-12
    for number, tensors in enumerate(given):
        write_checkpoint(root / f"step-0000000{number}", number, {"model": tensors})
    lockstep("average", *sorted(root.iterdir()), "--to", root / "mean.safetensors")
    expected = {"count": torch.tensor(6)}
    for name in ("w", "half", "double"):
        mean = numpy.sum([tensors[name].double().numpy() for tensors in given], axis=0) / 3
        expected[name] = torch.from_numpy(mean).to(given[0][name].dtype)
    check_equal(safetensors.torch.load_file(root / "mean.safetensors"), expected)


def test_averages_take_weights_files_and_averaged_weights_too():
    root = checkpoints([2, 4])
    safetensors.torch.save_file(files_of(9)["ema"], root / "other.safetensors")
    lockstep("average", root / "step-00000002", root / "other.safetensors", root / "step-00000004", "--weights", "ema",
             "--to", root / "mean.safetensors")
    found = safetensors.torch.load_file(root / "mean.safetensors")
    check(torch.equal(found["layer.weight"], (torch.arange(6).reshape(2, 3) + 5) / 2), found)


def test_weights_of_different_models_have_no_average():
    root = checkpoints([2])
    other = weights(2)
    other["new"] = other.pop("layer.bias")
    other["half"] = other["half"].float()
    other["layer.weight"] = other["layer.weight"].T.contiguous()
    safetensors.torch.save_file(other, root / "other.safetensors")
    error = lockstep("average", root / "step-00000002", root / "other.safetensors", "--to", root / "mean.safetensors",
                     code=2).err
    for part in ("[weights-not-alike]", '"layer.bias" is in', '"new" is in', '"half" is BFloat16 [2] and Float [2]',
                 '"layer.weight" is Float [2, 3] and Float [3, 2]'):
        check(part in error, (part, error))
    check(not (root / "mean.safetensors").exists(), "a file was written")


# ---- all of them ----


def test_a_path_that_leads_outside_or_nowhere_is_refused():
    root = checkpoints([1])
    (root / "best").symlink_to(f"../{root.name}/step-00000001")
    (root / "last").symlink_to("step-00000007")
    for name, error in (("best", "[damaged-checkpoint]"), ("last", "[checkpoint-not-found]"),
                        ("final", "[checkpoint-not-found]")):
        for command in (["inspect", root / name], ["verify", root / name], ["diff", root / name, root / name],
                        ["export", root / name, "--to", root / "x.safetensors"],
                        ["average", root / name, "--to", root / "x.safetensors"]):
            code = 1 if command[0] == "verify" and name == "best" else 2
            check(error in lockstep(*command, code=code).err, command)


def test_help_has_examples_and_fits_a_terminal():
    overview = lockstep("--help").out
    for command in COMMANDS:
        text = lockstep(command, "--help").out
        check("Example" in text and f"lockstep {command} " in text and "Exit code:" in text, text)
        check(all(len(line) <= 80 for line in text.splitlines()), text)
        described = re.search(rf"^  {command} +(.+)$", overview, re.M)
        check(described and described[1] in text, (command, overview, text))


def test_a_wrong_command_line_ends_with_2():
    root = checkpoints([1])
    for arguments in (["inspect"], ["verify"], ["diff", root], ["list"], ["prune", root], ["export", root], ["average", root],
                      ["prune", root, "--keep", "-1"], ["prune", root, "--keep", "many"],
                      ["export", root, "--weights", "best", "--to", "x.safetensors"], ["list", root, "--unknown"]):
        done = lockstep(*arguments, code=2)
        check(done.err and not done.out, (arguments, done))


def test_an_output_that_cannot_be_written_is_an_error():
    root = checkpoints([1])
    with open("/dev/full", "w") as full:
        done = subprocess.run([LOCKSTEP, "list", root], stdout=full, stderr=subprocess.PIPE, text=True, timeout=DEADLINE)
    check(done.returncode == 2 and "could not be written" in done.stderr, done)


def test_a_missing_second_program_is_named():
    folder = new_folder()
    shutil.copy(LOCKSTEP, folder / "lockstep")
    done = subprocess.run([folder / "lockstep", "list", folder], capture_output=True, text=True, timeout=DEADLINE)
    check(done.returncode == 2 and f"cannot start {folder.resolve()}/lockstep-files: No such file" in done.stderr, done)


run_cases(globals(), at_least=20)
