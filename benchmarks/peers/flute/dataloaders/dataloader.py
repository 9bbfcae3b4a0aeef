"""The task's batches in FLUTE's form."""

from core.dataloader import BaseDataLoader
from experiments.peer.dataloaders.dataset import Dataset
from torch.utils.data import default_collate


class DataLoader(BaseDataLoader):
    def __init__(self, mode, num_workers=0, **kwargs):
        self.batch_size = kwargs["args"]["batch_size"]
        dataset = Dataset(kwargs["data"], user_idx=kwargs.get("user_idx"))
        super().__init__(
            dataset, batch_size=self.batch_size, shuffle=mode == "train", collate_fn=collate
        )


def collate(examples):
    x, y = default_collate(examples)
    return {"x": x, "y": y}
