"""PyTorch modules of a user, for export_model.py."""

import torch
from torch import nn


class Attentive(nn.Module):
    """A convolution, patches of 8 x 8, and layers of a transformer."""

    def __init__(self, classes, size, layers, norm, width=32):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=not norm)
        self.norm = nn.BatchNorm2d(16) if norm else nn.Identity()
        self.patches = nn.Conv2d(16, width, 8, stride=8)
        self.places = nn.Parameter(torch.randn(1, (size // 8) ** 2, width) * 0.02)
        self.scale = nn.Parameter(torch.ones(1))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = torch.relu(self.norm(self.stem(images)))
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.layers(x).mean(1)) * self.scale


def attentive(classes, size):
    return Attentive(classes, size, layers=2, norm=True)


class PatchAttention(nn.Module):
    """The model of examples/own_model.cc, with its names."""

    def __init__(self, classes, size, patch=8, width=64):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.places = nn.Parameter(torch.randn((size // patch) ** 2, 1, width) * 0.02)
        self.attention = nn.MultiheadAttention(width, 4)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        sequence = self.patches(images).flatten(2).permute(2, 0, 1) + self.places
        normed = self.norm(sequence)
        mixed = self.attention(normed, normed, normed)[0] + sequence
        return self.head(mixed.mean(0))


class Plain(nn.Module):
    """No normalisation, a frozen layer, a constant, and, if asked for, dropout."""

    def __init__(self, classes, dropout=0.0):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 4, stride=4)
        self.frozen = nn.Conv2d(8, 8, 1).requires_grad_(False)
        self.register_buffer("steps", torch.zeros(3), persistent=False)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8 * 64, classes)

    def forward(self, images):
        x = self.first(images)
        x = self.frozen(x) * torch.tensor([1.0, 0.5]).repeat(4).view(1, 8, 1, 1) + self.steps.sum()
        return self.head(self.dropout(x.tanh().flatten(1)))


def plain(classes):
    return Plain(classes)


def dropping(classes):
    return Plain(classes, dropout=0.5)


class Broken(nn.Sequential):
    """What cannot be exported, each in another way."""

    def __init__(self, classes):
        super().__init__(nn.Flatten(), nn.Linear(3 * 32 * 32, classes))


def without_gradient(classes):
    model = Broken(classes)
    model.unused = nn.Parameter(torch.ones(3))
    model.forward = lambda images: model[1](model[0](images))
    return model


def with_scalar(classes):
    model = Broken(classes)
    model.factor = nn.Parameter(torch.tensor(1.0))
    return model


def tied(classes):
    model = Broken(classes)
    model.same = model[1].weight
    return model


def with_other_scores(classes):
    return Broken(classes + 1)


class Deciding(Broken):
    def forward(self, images):
        return super().forward(images if images.sum() > 0 else -images)


def deciding(classes):
    return Deciding(classes)


class Stepping(Broken):
    """Counts its steps in a scalar."""

    def __init__(self, classes):
        super().__init__(classes)
        self.register_buffer("count", torch.tensor(0.0))

    def forward(self, images):
        if self.training:
            self.count += 1
        return self[1](self[0](images))


def stepping(classes):
    return Stepping(classes)


def nothing(classes):
    return classes
