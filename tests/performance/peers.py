"""Trains the workloads of workloads.hpp in Python: same seeds and draws, hence same weights and batches.

    peers.py raw|accelerate|lightning|pytorch_accelerated

Answers each line of standard input with a line of JSON, as workloads.cpp does:

    info
    losses WORKLOAD WAY UPDATES
    time WORKLOAD|batches|update-W4 WAY WARM N WINDOW    the last: clip, optimizer and average alone
    time saves-small WAY WARM N WINDOW                   torch.save of 1,200 small tensors, which is not durable
    resume FOLDER                                        trains until it is killed, a line for each update

`losses` and `time` of a workload may end with RANK RANKS MEETING_POINT, as there: DistributedDataParallel over Gloo.

Ways of `raw`: `default`, what tutorials show, and `tuned`, with fused and foreach operations. `lightning` and
`pytorch_accelerated` have `quiet`, with everything off that can be; `accelerate` has `default`.
"""

import contextlib
import datetime
import json
import logging
import math
import os
import sys
import tempfile
import time
import warnings

import torch
from torch import nn
from torch.nn import functional as F

LR, WEIGHT_DECAY, MAX_GRAD_NORM, EMA_DECAY = 1e-3, 0.01, 1.0, 0.999
LOG_EVERY, EVALUATE_EVERY, CHECKPOINT_EVERY = 10, 100, 100
WARMUP, TOTAL, START_FACTOR = 100, 10_000, 0.01


def factor(update):
    if update < WARMUP:
        return START_FACTOR + (1 - START_FACTOR) * update / WARMUP
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (update - WARMUP) / (TOTAL - WARMUP))))


class ConvNet(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 10))


class Block(nn.Module):
    def __init__(self, width=128, heads=4):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.join = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.project(self.attention_norm(x)).split(width, 2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.widen(self.feed_norm(x))))


class Transformer(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(64, width)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.out(self.norm(self.blocks(x))).view(-1, 256)


def deep_net():
    layers = []
    with torch.no_grad():
        for _ in range(200):
            layers.append(nn.Linear(8, 8))
            layers[-1].weight.copy_(torch.linalg.qr(torch.randn(8, 8))[0])
            layers[-1].bias.zero_()
    return nn.Sequential(*layers)


def make_net(workload):
    torch.manual_seed(0)
    if workload == "W2":
        return ConvNet()
    if workload == "W3":
        return Transformer()
    if workload == "W4":
        return deep_net()
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def draw_batches(workload, count, seed):
    torch.manual_seed(seed)
    draw = {"W2": lambda: (torch.randn(32, 1, 28, 28), torch.randint(10, (32,))),
            "W3": lambda: (torch.randint(256, (8, 64)), torch.randint(256, (512,))),
            "W4": lambda: (torch.randn(8, 8), torch.randint(8, (8,)))}
    default = lambda: (torch.randn(32, 32), torch.randint(10, (32,)))
    return [draw.get(workload, default)() for _ in range(count)]


class Stopwatch:
    """Cuts a run into windows of equal length, each timed by itself; the warm-up is not."""

    def __init__(self, warm, window):
        self.until_mark, self.window, self.marks = warm, window, []

    def tick(self):
        self.until_mark -= 1
        if self.until_mark < 0:
            self.until_mark = self.window - 1
            self.marks.append(time.perf_counter())

    def seconds(self, parts):
        return [(b - a) / parts for a, b in zip(self.marks, self.marks[1:])]


class Batches:
    """A sized iterable over batches in memory, in a cycle, with what the trainers ask of a loader. An epoch may be given
    a length; the next one goes on where it ended."""

    def __init__(self, batches, length, stopwatch=None):
        self.batches, self.length, self.stopwatch, self.position = batches, length, stopwatch, 0
        self.dataset, self.batch_size, self.sampler, self.batch_sampler = batches, len(batches[0][1]), None, None

    def __len__(self):
        return self.length

    def __iter__(self):
        for _ in range(self.length):
            if self.stopwatch:
                self.stopwatch.tick()
            self.position += 1
            yield self.batches[(self.position - 1) % len(self.batches)]


class Job:
    def __init__(self, workload, updates, collect=False, warm=0, window=1, rank=0, ranks=1):
        self.workload, self.updates, self.collect, self.losses = workload, updates, collect, []
        self.rank, self.ranks = rank, ranks
        self.everything = workload == "W6"
        self.accumulation = 4 if self.everything else 1
        self.average = workload in ("W4", "W5", "W6")
        self.max_grad_norm = MAX_GRAD_NORM if self.average else None
        self.stopwatch = Stopwatch(warm * self.accumulation, window * self.accumulation)
        self.model = make_net(workload)
        self.loader = self.make_loader()
        self.held_out = draw_batches(workload, 10, 2)
        self.folder = tempfile.TemporaryDirectory(prefix="performance-")

    def make_loader(self, length=None):
        return Batches(draw_batches(self.workload, 64, 1)[self.rank::self.ranks],
                       length or self.updates * self.accumulation, self.stopwatch)

    def make_optimizer(self, **options):
        return torch.optim.AdamW(self.model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY, **options)

    def make_scheduler(self, optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor) if self.everything else None

    def see(self, loss):
        if self.collect:
            self.losses.append(loss.item())

    def path(self, name):
        return os.path.join(self.folder.name, name)


@torch.no_grad()
def evaluate(model, batches):
    model.eval()
    loss = correct = samples = 0
    for x, y in batches:
        logits = model(x)
        loss += F.cross_entropy(logits, y).item() * len(y)
        correct += (logits.argmax(1) == y).sum().item()
        samples += len(y)
    model.train()
    return loss / samples, correct / samples


def averaged(model):
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(EMA_DECAY))


# --- the loops -----------------------------------------------------------------------------------------------------


class RawUpdate:
    """Clip, optimizer and average of the loops by hand."""

    def __init__(self, job, tuned):
        self.parameters, self.max_grad_norm, self.tuned = list(job.model.parameters()), job.max_grad_norm, tuned
        self.optimizer = job.make_optimizer(fused=True if tuned else None)
        self.average = averaged(job.model) if job.average else None
        self.model = job.model
        if self.average:
            self.live = [p.detach() for p in self.parameters]
            self.shadow = [p.detach() for p in self.average.module.parameters()]

    def __call__(self):
        if self.max_grad_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm, foreach=True if self.tuned else None)
        self.optimizer.step()

    def follow(self):
        if self.average and self.tuned:
            torch._foreach_lerp_(self.shadow, self.live, 1 - EMA_DECAY)
        elif self.average:
            self.average.update_parameters(self.model)


def on_all_ranks(job, tuned):
    if job.ranks == 1:
        return job.model
    return nn.parallel.DistributedDataParallel(job.model, gradient_as_bucket_view=tuned, static_graph=tuned)


def raw(job, tuned):
    model = on_all_ranks(job, tuned)
    update = RawUpdate(job, tuned)
    scheduler = job.make_scheduler(update.optimizer)
    log = open(job.path("log.csv"), "w")
    step = 0
    job.model.train()
    for i, (x, y) in enumerate(job.loader):
        loss = F.cross_entropy(model(x), y)
        job.see(loss)
        (loss / job.accumulation if job.accumulation > 1 else loss).backward()
        if (i + 1) % job.accumulation:
            continue
        update()
        if scheduler:
            scheduler.step()
        update.optimizer.zero_grad()
        update.follow()
        step += 1
        if job.everything:
            if step % LOG_EVERY == 0:
                log.write(f"{step},{loss.item()},{update.optimizer.param_groups[0]['lr']}\n")
            if step % EVALUATE_EVERY == 0:
                log.write(f"{step},{evaluate(update.average, job.held_out)}\n")
            if step % CHECKPOINT_EVERY == 0:
                torch.save({"model": job.model.state_dict(), "average": update.average.state_dict(),
                            "optimizer": update.optimizer.state_dict(), "scheduler": scheduler.state_dict(),
                            "step": step}, job.path("last.pt"))
    log.close()


def raw_update_alone(tuned, stopwatch, count):
    job = Job("W4", count)
    update = RawUpdate(job, tuned)
    torch.manual_seed(3)
    for p in job.model.parameters():
        p.grad = torch.randn_like(p)
    for _ in range(count):
        stopwatch.tick()
        update()
        update.follow()


def accelerate(job):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.tracking import GeneralTracker, on_main_process

    class CsvTracker(GeneralTracker):
        name, requires_logging_directory = "csv", False

        def __init__(self, path):
            super().__init__()
            self.file = open(path, "w")

        @property
        def tracker(self):
            return self.file

        @on_main_process
        def store_init_configuration(self, values):
            pass

        @on_main_process
        def log(self, values, step=None, **_):
            self.file.write(f"{step},{values}\n")

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=job.accumulation,
                              log_with=CsvTracker(job.path("log.csv")) if job.everything else None)
    average = averaged(job.model) if job.average else None
    optimizer = job.make_optimizer()
    scheduler = job.make_scheduler(optimizer)
    model, optimizer, loader = accelerator.prepare(job.model, optimizer, job.loader)
    if job.everything:
        scheduler = accelerator.prepare(scheduler)
        accelerator.register_for_checkpointing(average)
        accelerator.init_trackers("performance")
    step = 0
    model.train()
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            job.see(loss)
            accelerator.backward(loss)
            if job.max_grad_norm and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), job.max_grad_norm)
            optimizer.step()
            if scheduler:
                scheduler.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        if average:
            average.update_parameters(model)
        step += 1
        if job.everything:
            if step % LOG_EVERY == 0:
                accelerator.log({"loss": loss.item(), "lr": optimizer.param_groups[0]["lr"]}, step=step)
            if step % EVALUATE_EVERY == 0:
                accelerator.log({"validation": evaluate(average, job.held_out)}, step=step)
            if step % CHECKPOINT_EVERY == 0:
                accelerator.save_state(job.path("state"))
    accelerator.end_training()


def lightning(job):
    """The Trainer with its own means for everything, without progress bar, summary and what else can be off."""
    import lightning as L
    from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
    from lightning.pytorch.loggers import CSVLogger
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = job.model

        def training_step(self, batch, _):
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            job.see(loss)
            if job.everything:
                self.log("loss", loss)
            return loss

        def validation_step(self, batch, _):
            logits = self.net(batch[0])
            self.log("validation_loss", F.cross_entropy(logits, batch[1]))
            self.log("validation_accuracy", (logits.argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            optimizer = job.make_optimizer()
            if not job.everything:
                return optimizer
            return [optimizer], [{"scheduler": job.make_scheduler(optimizer), "interval": "step"}]

    options = {"logger": False, "enable_checkpointing": False}
    callbacks = [EMAWeightAveraging(decay=EMA_DECAY)] if job.average else []
    if job.everything:
        callbacks.append(ModelCheckpoint(dirpath=job.folder.name, every_n_train_steps=CHECKPOINT_EVERY))
        options = {"accumulate_grad_batches": job.accumulation, "log_every_n_steps": LOG_EVERY,
                   "num_sanity_val_steps": 0, "logger": CSVLogger(job.folder.name), "check_val_every_n_epoch": None,
                   "val_check_interval": EVALUATE_EVERY * job.accumulation}
        if len(job.loader) < options["val_check_interval"]:
            options["val_check_interval"] = len(job.loader)
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=1, default_root_dir=job.folder.name, callbacks=callbacks,
                        gradient_clip_val=job.max_grad_norm, enable_progress_bar=False, enable_model_summary=False,
                        **options)
    held_out = Batches(job.held_out, len(job.held_out)) if job.everything else None
    trainer.fit(Module(), job.loader, held_out)


def pytorch_accelerated(job):
    """The Trainer with its one needed callback. It clips by value and averages once an epoch, so both stand in
    optimizer_step(); an epoch is what lies between two evaluations."""
    from types import SimpleNamespace
    from pytorch_accelerated.callbacks import MoveModulesToDeviceCallback, TrainerCallback
    from pytorch_accelerated.trainer import Trainer
    from pytorch_accelerated.utils import ModelEma

    epoch_updates = EVALUATE_EVERY if job.everything else job.updates

    class Peer(Trainer):
        def __init__(self, **parts):
            super().__init__(**parts)
            self.average = ModelEma(job.model, EMA_DECAY) if job.average else None
            self.step = 0

        def create_train_dataloader(self, *_, **__):
            loader = job.make_loader(epoch_updates * job.accumulation)
            loader.batch_sampler, self._train_dl_kwargs = SimpleNamespace(even_batches=True), {}
            return loader

        def create_eval_dataloader(self, *_, **__):
            loader = Batches(job.held_out, len(job.held_out))
            loader.batch_sampler, self._eval_dl_kwargs = SimpleNamespace(even_batches=True), {}
            return loader

        def _check_eval_batch_size(self):
            pass  # looks into a DataLoader

        def calculate_train_batch_loss(self, batch):
            result = super().calculate_train_batch_loss(batch)
            job.see(result["loss"])
            return result

        def optimizer_step(self):
            if job.max_grad_norm:
                self._accelerator.clip_grad_norm_(self.model.parameters(), job.max_grad_norm)
            super().optimizer_step()
            if self.average:
                self.average.update(self.model)
            self.step += 1

    class Everything(TrainerCallback):
        def __init__(self):
            self.log = open(job.path("log.csv"), "w")

        def on_train_step_end(self, trainer, batch_output, step, **_):
            if (step + 1) % (LOG_EVERY * job.accumulation) == 0:
                self.log.write(f"{trainer.step},{batch_output['loss'].item()}\n")

        def on_training_run_epoch_end(self, trainer, **_):
            self.log.write(f"{trainer.step},{trainer.run_history.get_latest_metric('eval_loss_epoch')}\n")
            trainer.save_checkpoint(job.path("last.pt"),
                                    checkpoint_kwargs={"average": trainer.average.state_dict(), "step": trainer.step})

    callbacks = [MoveModulesToDeviceCallback()] + ([Everything()] if job.everything else [])
    trainer = Peer(model=job.model, loss_func=F.cross_entropy, callbacks=callbacks, optimizer=job.make_optimizer())
    trainer.train(train_dataset=job.held_out, eval_dataset=job.held_out, num_epochs=-(-job.updates // epoch_updates),
                  per_device_batch_size=32, gradient_accumulation_steps=job.accumulation,
                  create_scheduler_fn=job.make_scheduler if job.everything else None)


WAYS = {("raw", "default"): lambda job: raw(job, False), ("raw", "tuned"): lambda job: raw(job, True),
        ("accelerate", "default"): accelerate, ("lightning", "quiet"): lightning,
        ("pytorch_accelerated", "quiet"): pytorch_accelerated}


# --- answering -----------------------------------------------------------------------------------------------------


def read_batches(stopwatch, count):
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(60_000, 784), torch.randint(10, (60_000,))), batch_size=32,
                        shuffle=True)
    while True:
        for _ in loader:
            stopwatch.tick()
            count -= 1
            if count == 0:
                return


def time_saves(warm, count):
    state = {f"p{i}": torch.randn(64) for i in range(1200)}
    stopwatch = Stopwatch(warm, 1)
    with tempfile.TemporaryDirectory(prefix="saving-", dir=os.environ.get("LOCKSTEP_PERFORMANCE_DISK")) as folder:
        for _ in range(warm + count):
            stopwatch.tick()
            torch.save(state, os.path.join(folder, "state.pt"))
        stopwatch.tick()
    return stopwatch.seconds(1)


def resume(folder, reply):
    """W1 as tutorials save and load it, but for the file, which is replaced as a whole."""
    model, batches = make_net("W1"), draw_batches("W1", 64, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    path, step = os.path.join(folder, "checkpoint.pt"), 0
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    updates = 0
    while True:
        x, y = batches[step % len(batches)]
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        updates += 1
        reply.write(f"{updates}\n")
        if step % 20 == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".tmp")
            os.replace(path + ".tmp", path)


@contextlib.contextmanager
def joined(rank=0, ranks=1, meeting_point=None):
    """Within the ranks of a run, if a request names them."""
    if meeting_point:
        torch.distributed.init_process_group("gloo", meeting_point, datetime.timedelta(minutes=1), ranks, rank)
    try:
        yield {"rank": rank, "ranks": ranks}
    finally:
        if meeting_point:
            torch.distributed.destroy_process_group()


def answer(peer, words):
    if words[0] == "info":
        from importlib.metadata import version
        package = "torch" if peer == "raw" else peer.replace("_", "-")
        __import__(peer if peer != "raw" else "torch")
        return {"capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads(),
                "torch": torch.__version__, package: version(package)}
    what, workload, way = words[:3]
    counts = 1 if what == "losses" else 3
    numbers = [int(word) for word in words[3:3 + counts]]
    ranks = [int(word) for word in words[3 + counts:-1]] + words[3 + counts:][-1:]
    if what == "losses":
        with joined(*ranks) as place:
            job = Job(workload, *numbers, collect=True, **place)
            WAYS[peer, way](job)
        return {"losses": job.losses[:job.updates * job.accumulation]}
    warm, count, window = numbers
    if workload == "saves-small":
        return {"seconds": time_saves(warm, count)}
    updates = warm + count + 1  # what comes after the last window closes it
    stopwatch = Stopwatch(warm, window)
    if workload == "batches":
        read_batches(stopwatch, updates)
    elif workload == "update-W4":
        raw_update_alone(way == "tuned", stopwatch, updates)
    else:
        with joined(*ranks) as place:
            job = Job(workload, updates, warm=warm, window=window, **place)
            WAYS[peer, way](job)
        stopwatch = job.stopwatch
    return {"seconds": stopwatch.seconds(window)[:count // window]}


def main():
    # What the peers print goes to standard error.
    reply = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for line in sys.stdin:
        if line.startswith("resume "):
            resume(line.split()[1], reply)
        try:
            result = answer(sys.argv[1], line.split())
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        reply.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
