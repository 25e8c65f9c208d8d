"""Loaders in torch's DataLoader, with and without workers, and torch.distributed."""

import pathlib
import sys
import unittest
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.python.case import HAS_TORCH, Case, content, loader, mr, needs_torch  # noqa: E402

if HAS_TORCH:
    import torch


@needs_torch
class Torch(Case):
    def test_a_dataloader_without_workers_passes_batches_on(self):
        data = loader(shuffle=100, output="torch")
        through = torch.utils.data.DataLoader(mr.IterableDataset(data), batch_size=None)
        for batch in through:
            images, labels = batch
            self.assertIs(batch.images, images)
            self.assertEqual(tuple(images.shape), (50, 3, 32, 32))
            self.assertTrue(images.is_contiguous(memory_format=torch.channels_last))
            self.assertEqual(len(labels), 50)
        self.assertEqual(data.epoch, 1)
        with self.assertRaises(TypeError):
            len(through)
        known = mr.IterableDataset(loader("train.json", output="torch"))
        self.assertEqual(len(torch.utils.data.DataLoader(known, batch_size=None)), 8)

    def test_a_dataloader_that_makes_batches_of_batches_is_told_so(self):
        for workers in 0, 1:
            for batch_size in {}, {"batch_size": 4}:
                data = mr.IterableDataset(loader(output="torch"))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    with self.assertRaisesRegex(ValueError, "batches of the loader's batches.*batch_size=None"):
                        next(iter(torch.utils.data.DataLoader(data, **batch_size, num_workers=workers)))
        for wrong in {"shuffle": True}, {"sampler": range(3)}, {"batch_sampler": [[0]]}:
            with self.assertRaisesRegex(ValueError, "IterableDataset"):
                torch.utils.data.DataLoader(data, **{"batch_size": None} | wrong)
        with self.assertRaisesRegex(TypeError, r"DataLoader\(mr.IterableDataset\(loader\), batch_size=None\)"):
            next(iter(torch.utils.data.DataLoader(loader("train.json", output="torch"), batch_size=None)))
        samples = mr.IterableDataset(mr.samples("train-000000.tar"))  # which a DataLoader may batch
        self.assertEqual(len(next(iter(torch.utils.data.DataLoader(samples, batch_size=4)))["__key__"]), 4)

    def test_an_iterable_data_set_of_no_loader_is_refused(self):
        for wrong in 3, None, [1, 2], mr.IndexedDataset("train.json"):
            with self.assertRaisesRegex(mr.UsageError, "an IterableDataset of .*; give a loader of millrace"):
                mr.IterableDataset(wrong)

    def test_positions_pass_through(self):
        data = mr.IterableDataset(loader(shuffle=100, output="torch"))
        epoch = iter(data)
        first = next(epoch)
        state = data.state_dict()
        rest = [b.labels.tolist() for b in epoch]
        data.load_state_dict(state)
        self.assertEqual([b.labels.tolist() for b in data], rest)
        self.assertEqual(len(first.keys), 50)

    def test_workers_divide_the_shards(self):
        for method, workers in (("fork", 2), ("spawn", 1)):
            data = loader(shuffle=100, output="torch", batch_size=20)
            begun = [b.labels.tolist() for b in data]  # its threads are the parent's
            self.assertEqual(len(begun), 20)
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                through = torch.utils.data.DataLoader(mr.IterableDataset(data), batch_size=None, num_workers=workers,
                                                      multiprocessing_context=method, collate_fn=mr.Batch.same)
                batches = list(through)
            with self.assertRaisesRegex(TypeError, "whose workers divide the shards is not known: give it num_workers=0"):
                len(torch.utils.data.DataLoader(mr.IterableDataset(loader("train.json")), batch_size=None, num_workers=workers))
            keys = [key for batch in batches for key in batch.keys]
            self.assertEqual((len(keys), len(set(keys))), (400, 400))
            self.assertEqual(tuple(batches[0].images.shape), (20, 3, 32, 32))
            if method == "fork":  # a forked worker begins where its parent's loader is
                data.set_epoch(5)
                self.assertNotEqual(keys, [key for batch in through for key in batch.keys])

    def test_an_indexed_data_set_in_a_dataloader(self):
        data = mr.IndexedDataset("train.json")
        self.assertEqual(len(data), 400)  # its threads are the parent's
        through = torch.utils.data.DataLoader(data, batch_size=100, shuffle=True, num_workers=2, collate_fn=list)
        keys = [s["__key__"] for batch in through for s in batch]
        self.assertEqual((len(keys), len(set(keys))), (400, 400))

    def test_ranks_of_torch_distributed(self):
        program = """
            import torch.distributed as dist
            dist.init_process_group("gloo", init_method="file://" + os.getcwd() + "/meet-{of}", rank={rank}, world_size={of})
            data = L(output="torch", batch_size=20)
            print(*(key for b in data for key in b.keys))
            dist.barrier()
            dist.destroy_process_group()
            """
        programs = [self.start(program.format(rank=rank, of=2)) for rank in range(2)]
        outs = [p.communicate(timeout=120) for p in programs]
        self.assertEqual([p.returncode for p in programs], [0, 0], outs)
        keys = [key for out, _ in outs for key in out.splitlines()[-1].split()]
        self.assertEqual((len(keys), len(set(keys))), (400, 400))

    def test_batches_are_kept_by_torch(self):
        data = loader(output="torch")
        batch = next(iter(data))
        before = content(next(iter(loader())))[0]
        images = batch.images
        del batch
        data.close()
        self.assertEqual(images.permute(0, 2, 3, 1).contiguous().numpy().tobytes(), before)


if __name__ == "__main__":
    unittest.main()
