"""The task's clients in FLUTE's form."""

import os

from core.dataset import BaseDataset
from task import clients


class Dataset(BaseDataset):
    """One client's examples out of a dict of several; FLUTE asks for all (no dict) to pick from
    them.
    """

    def __init__(self, data, test_only=False, user_idx=0, **kwargs):
        content = data if isinstance(data, dict) else self.load_data()
        self.user_list, self.num_samples = content["users"], content["num_samples"]
        self.user_data, self.user_data_label = content["user_data"], content["user_data_label"]
        user = self.user_list[max(user_idx or 0, 0)]
        self.x, self.y = self.user_data[user], self.user_data_label[user]

    def __getitem__(self, i):
        return self.x[i], self.y[i]

    def __len__(self):
        return len(self.y)

    def load_data(self):
        x, y = clients(os.environ["PEER_DATA"])
        names = [f"client{k}" for k in range(len(x))]
        images, labels = dict(zip(names, x, strict=True)), dict(zip(names, y, strict=True))
        return {
            "users": names,
            "num_samples": [len(each) for each in y],
            "user_data": images,
            "user_data_label": labels,
        }
