"""The task's model in FLUTE's form."""

import torch
from core.model import BaseModel
from task import cnn
from torch.nn.functional import cross_entropy


class CNN(BaseModel):
    def __init__(self, model_config):
        super().__init__()
        self.net = cnn()

    def loss(self, batch):
        return cross_entropy(self.net(batch["x"]), batch["y"])

    @torch.no_grad()
    def inference(self, batch):
        output = self.net(batch["x"])
        right = (output.argmax(1) == batch["y"]).float().mean().item()
        return {"output": output, "acc": right, "batch_size": len(batch["y"])}
