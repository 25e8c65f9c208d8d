"""Programs that save and restore a loader with their own checkpoints: torchdata's StatefulDataLoader, Lightning, Accelerate, and Hugging
Face's Trainer."""

import importlib.util
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import HAS_TORCH, Case, loader, mr, needs_torch  # noqa: E402

if HAS_TORCH:
    import torch


def has(module):
    return HAS_TORCH and importlib.util.find_spec(module) is not None


def labels(batches):
    return [y.tolist() for _, y in batches]


@needs_torch
class Trainers(Case):
    def wanted(self):
        return labels(loader("train.json", shuffle=100, output="torch"))

    @unittest.skipUnless(has("torchdata"), "no torchdata in this Python")
    def test_a_stateful_dataloader_continues_within_an_epoch(self):
        from torchdata.stateful_dataloader import StatefulDataLoader

        def made():
            return StatefulDataLoader(mr.IterableDataset(loader("train.json", shuffle=100, output="torch")), batch_size=None)

        first = made()
        begun = labels(b for _, b in zip(range(3), first))
        other = made()
        other.load_state_dict(first.state_dict())
        self.assertEqual(begun + labels(other), self.wanted())
        self.assertEqual(len(labels(other)), 8)  # the next epoch

    @unittest.skipUnless(has("lightning"), "no Lightning in this Python")
    def test_lightning_continues_within_an_epoch(self):
        import lightning

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer, self.seen = torch.nn.Linear(3 * 32 * 32, 10), []

            def training_step(self, batch, _):
                self.seen.append(batch[1].tolist())
                return torch.nn.functional.cross_entropy(self.layer(batch[0].flatten(1) / 255), batch[1])

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.01)

        class SavesAndStops(lightning.Callback):
            def on_train_batch_end(self, trainer, model, *_):
                if len(model.seen) == 3:
                    trainer.save_checkpoint("middle.ckpt")
                    trainer.should_stop = True

        def fit(callbacks, checkpoint):
            model = Model()
            trainer = lightning.Trainer(max_epochs=1, callbacks=callbacks, accelerator="cpu", logger=False,
                                        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
            trainer.fit(model, mr.Lockstep(loader("train.json", shuffle=100, output="torch")), ckpt_path=checkpoint)
            return model.seen

        self.assertEqual(fit([SavesAndStops()], None) + fit([], "middle.ckpt"), self.wanted())

    @unittest.skipUnless(has("accelerate"), "no Accelerate in this Python")
    def test_accelerate_continues_within_an_epoch(self):
        from accelerate import Accelerator

        def made():
            accelerator = Accelerator(cpu=True)
            steps = mr.Lockstep(loader("train.json", shuffle=100, output="torch"))
            accelerator.register_for_checkpointing(steps)
            return accelerator, steps

        accelerator, steps = made()
        begun = labels(b for _, b in zip(range(3), steps))
        accelerator.save_state("accelerated")
        accelerator, steps = made()
        accelerator.load_state("accelerated")
        self.assertEqual(begun + labels(steps), self.wanted())

    @unittest.skipUnless(has("transformers") and has("accelerate"), "no transformers in this Python")
    def test_hugging_faces_trainer_continues_within_an_epoch(self):
        import transformers

        class Dicts:
            def __init__(self, data):
                self.data = data

            def __iter__(self):
                for images, y in self.data:
                    yield {"images": images, "labels": y}

            def __len__(self):
                return len(self.data)

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer, self.seen = torch.nn.Linear(3 * 32 * 32, 10), []

            def forward(self, images, labels):
                self.seen.append(labels.tolist())
                scores = self.layer(images.flatten(1) / 255)
                return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}

        class Trainer(transformers.Trainer):
            def get_train_dataloader(self):
                return Dicts(self.train_dataset)

        class Saves(transformers.TrainerCallback):
            def on_save(self, args, state, control, train_dataloader=None, **_):
                position = train_dataloader.data.state_dict()
                pathlib.Path(args.output_dir, f"checkpoint-{state.global_step}", "data.json").write_text(json.dumps(position))

        def fit(steps, checkpoint=None):
            data, model = loader("train.json", shuffle=100, output="torch"), Model()
            if checkpoint is not None:
                data.load_state_dict(json.loads(pathlib.Path(checkpoint, "data.json").read_text()))
            terms = transformers.TrainingArguments("out", num_train_epochs=1, max_steps=steps, save_steps=3, report_to=[], use_cpu=True,
                                                   ignore_data_skip=True, logging_strategy="no", disable_tqdm=True)
            Trainer(model, terms, train_dataset=data, callbacks=[Saves()]).train(resume_from_checkpoint=checkpoint)
            return model.seen

        self.assertEqual(fit(3) + fit(-1, "out/checkpoint-3"), self.wanted())


if __name__ == "__main__":
    unittest.main()
