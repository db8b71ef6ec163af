"""Python's training tools as programs for crash_points.py, each saving after every update as its users do.

usage: python_tools.py TOOL | list

TOOL is a function below that is in TOOLS; `list` prints as JSON what each is called, and its version if it
is installed. Orders and answers are those of crash_program.cpp without arguments. A batch depends on the
number of its update alone, so that no sampler plays a part: what is tried is the checkpoint. `update` and
`end` tell a hash of weights and optimizer state together.
"""

import contextlib
import hashlib
import importlib.metadata
import io
import json
import logging
import os
import pathlib
import re
import shutil
import socket
import sys
import tempfile
import warnings

import torch
from torch import nn


def make_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch(update):
    generator = torch.Generator().manual_seed(update)
    return torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def loss_at(model, update):
    data, target = batch(update)
    return nn.functional.cross_entropy(model(data), target)


def fingerprint(model, optimizer):
    digest = hashlib.sha256()
    optimizer = getattr(optimizer, "optimizer", optimizer)
    for parameter in model.parameters():
        state = optimizer.state.get(parameter, {})
        for tensor in (parameter, *(state[name] for name in sorted(state))):
            digest.update(torch.as_tensor(tensor).detach().float().contiguous().numpy().tobytes())
    return digest.hexdigest()


class Order:
    """What a child does: train in `folder` to update `last`, and tell."""

    def __init__(self, channel, folder, last):
        self.channel, self.folder, self.last = channel, pathlib.Path(folder), last

    def say(self, line):
        self.channel.sendall((line + "\n").encode())

    @property
    def resumes(self):
        return self.folder.exists() and any(self.folder.iterdir())

    def before(self, model, optimizer):
        """An update begins."""
        self.say("update " + fingerprint(model, optimizer))

    def ends(self, step, model, optimizer):
        self.say(f"end {step} " + fingerprint(model, optimizer))


class Mute:
    def sendall(self, _):
        pass


def by_hand(order, load, save):
    """A hand-written loop; `load` returns the step."""
    model = make_model()
    optimizer = make_optimizer(model)
    step = load(model, optimizer) if order.resumes else 0
    order.folder.mkdir(exist_ok=True)
    for update in range(step, order.last):
        order.before(model, optimizer)
        optimizer.zero_grad()
        loss_at(model, update).backward()
        optimizer.step()
        save(update + 1, model, optimizer)
    order.ends(order.last, model, optimizer)


def torch_file(order, write):
    path = order.folder / "last.pt"

    def load(model, optimizer):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"]

    def save(step, model, optimizer):
        write({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)

    by_hand(order, load, save)


def torch_save(order):
    torch_file(order, torch.save)


def torch_save_replace(order):
    def write(state, path):
        torch.save(state, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)

    torch_file(order, write)


def distributed_checkpoint(order, folder_of, find, kept):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    warnings.simplefilter("ignore")

    def state(step, model, optimizer):
        weights, moments = get_state_dict(model, optimizer)
        return {"step": step, "model": weights, "optimizer": moments}

    def load(model, optimizer):
        found = state(0, model, optimizer)
        dcp.load(found, checkpoint_id=find(), no_dist=True)
        set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
        return found["step"]

    def save(step, model, optimizer):
        dcp.save(state(step, model, optimizer), checkpoint_id=folder_of(step), no_dist=True)
        for old in kept()[:-2]:
            shutil.rmtree(old)

    by_hand(order, load, save)


def dcp_same_folder(order):
    last = order.folder / "last"
    distributed_checkpoint(order, lambda _: last, lambda: last, lambda: [])


def dcp_folder_a_step(order):
    def saved():
        return sorted(order.folder.glob("step-*"), key=lambda path: int(path.name[5:]))

    def newest():
        return [path for path in saved() if (path / ".metadata").exists()][-1]

    distributed_checkpoint(order, lambda step: order.folder / f"step-{step}", newest, saved)


def accelerate(order, options, folder):
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    class Progress:
        step = 0

        def state_dict(self):
            return {"step": self.step}

        def load_state_dict(self, state):
            self.step = state["step"]

    configuration = ProjectConfiguration(project_dir=str(order.folder), **options)
    accelerator = Accelerator(cpu=True, project_config=configuration)
    model = make_model()
    model, optimizer = accelerator.prepare(model, make_optimizer(model))
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if order.resumes:
        accelerator.load_state(folder)
        configuration.iteration = progress.step  # the user is told to go on numbering by hand
    while progress.step < order.last:
        order.before(model, optimizer)
        optimizer.zero_grad()
        accelerator.backward(loss_at(model, progress.step))
        optimizer.step()
        progress.step += 1
        accelerator.save_state(folder)
    order.ends(progress.step, model, optimizer)


def accelerate_automatic(order):
    accelerate(order, {"automatic_checkpoint_naming": True, "total_limit": 2}, None)


def accelerate_same_folder(order):
    accelerate(order, {}, str(order.folder / "last"))


def lightning(order):
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = make_model()

        def training_step(self, _batch, _index):
            order.before(self.net, self.trainer.optimizers[0])
            return loss_at(self.net, self.trainer.global_step)

        def configure_optimizers(self):
            return make_optimizer(self.net)

    module = Module()
    saving = ModelCheckpoint(dirpath=order.folder, save_last=True, every_n_train_steps=1)
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_steps=order.last, logger=False,
                                callbacks=[saving], enable_progress_bar=False, enable_model_summary=False,
                                default_root_dir=order.folder)
    data = torch.utils.data.DataLoader(torch.arange(100), batch_size=1)
    trainer.fit(module, data, ckpt_path="last" if order.resumes else None)
    order.ends(trainer.global_step, module.net, trainer.optimizers[0])


def pytorch_accelerated(order, save, load):
    """An epoch is an update here, since it saves at the ends of epochs."""
    import pytorch_accelerated
    from pytorch_accelerated.callbacks import TrainerCallback

    class Saving(TrainerCallback):
        def on_training_run_epoch_end(self, trainer, **_):
            save(trainer, {"step": trainer.updates})

    class Trainer(pytorch_accelerated.Trainer):
        updates = 0

        def calculate_train_batch_loss(self, _):
            order.before(self.get_model(), self.optimizer)
            data, target = batch(self.updates)
            output = self.model(data)
            return {"loss": self.loss_func(output, target), "model_outputs": output,
                    "batch_size": len(target)}

        def optimizer_step(self):
            super().optimizer_step()
            self.updates += 1

        def load_training_state(self, folder):
            extra = super().load_training_state(folder)
            self.updates = extra["step"]
            return extra

    order.folder.mkdir(exist_ok=True)
    model = make_model()
    trainer = Trainer(model, nn.functional.cross_entropy, make_optimizer(model), callbacks=[Saving()])
    with contextlib.redirect_stdout(io.StringIO()):
        options = load(trainer, order.resumes)
        data = torch.utils.data.TensorDataset(torch.zeros(1, 1), torch.zeros(1, 1))
        trainer.train(data, per_device_batch_size=1, **options)
    order.ends(trainer.updates, trainer.get_model(), trainer.optimizer)


def pytorch_accelerated_file(order):
    path = str(order.folder / "last.pt")

    def load(trainer, resumes):
        trainer.updates = trainer.load_checkpoint(path)["step"] if resumes else 0
        return {"num_epochs": order.last - trainer.updates}

    pytorch_accelerated(order, lambda trainer, extra: trainer.save_checkpoint(path, extra), load)


def pytorch_accelerated_folder(order):
    path = str(order.folder / "last")

    def load(_trainer, resumes):
        if not resumes:
            return {"num_epochs": order.last}
        return {"num_epochs": order.last - 1, "resume_from": path}  # it counts the last epoch again

    pytorch_accelerated(order, lambda trainer, extra: trainer.save_training_state(path, extra), load)


# Package and title.
TOOLS = {
    "torch_save": ("torch", "`torch.save` over one file"),
    "torch_save_replace": ("torch", "`torch.save` to a temporary file, then `os.replace`"),
    "dcp_same_folder": ("torch", "`torch.distributed.checkpoint`, same folder"),
    "dcp_folder_a_step": ("torch", "`torch.distributed.checkpoint`, a folder a step"),
    "lightning": ("lightning", "Lightning `ModelCheckpoint(save_last=True)`"),
    "accelerate_automatic": ("accelerate", "Accelerate `save_state`, automatic naming, two kept"),
    "accelerate_same_folder": ("accelerate", "Accelerate `save_state`, same folder"),
    "pytorch_accelerated_file": ("pytorch-accelerated", "pytorch-accelerated `save_checkpoint` over one file"),
    "pytorch_accelerated_folder": ("pytorch-accelerated",
                                   "pytorch-accelerated `save_training_state`, same folder"),
}


def follow(tool, channel, words):
    order = Order(channel, words[0], int(words[1]))
    order.say(f"ready {os.getpid()}")
    channel.recv(1)
    try:
        tool(order)
        os._exit(0)
    except BaseException as error:  # some tools throw what is no Exception
        texts = []
        while error is not None:
            texts.append(f"{type(error).__name__}: {error}")
            error = error.__cause__ or error.__context__
        order.say("error " + re.sub(r"\s+", " ", "; ".join(texts)))
        os._exit(3)


def installed(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main():
    if sys.argv[1] == "list":
        print(json.dumps({name: {"title": title, "package": package, "version": installed(package)}
                          for name, (package, title) in TOOLS.items()}))
        return
    tool = globals()[sys.argv[1]]
    channel = socket.socket(fileno=os.dup(0))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:  # what is imported late is imported now
        with contextlib.suppress(BaseException):
            tool(Order(Mute(), f"{folder}/run", 2))
            tool(Order(Mute(), f"{folder}/run", 3))
    for line in channel.makefile("r"):
        child = os.fork()
        if child == 0:
            follow(tool, channel, line.split())
        _, status = os.waitpid(child, 0)
        channel.sendall(f"exit {status}\n".encode())


if __name__ == "__main__":
    main()
