"""Your own augmentation: any function from one picture to a picture or tensor, as it is.

    python examples/own_views.py          30 s on two cores

torchvision transforms, albumentations pipelines and plain functions work alike. Their draws are seeded with
(seed, epoch, index, view), so a run that was stopped resumes to the same weights.
"""

import tempfile
from pathlib import Path

import torch
from PIL import Image, ImageOps
from torchvision.transforms import v2

import nearfar as nf


def torchvision_views() -> v2.Transform:
    return v2.Compose(
        [
            v2.RandomResizedCrop(32, scale=(0.4, 1.0)),
            v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
            v2.RandomApply([v2.GaussianBlur(3)], 0.3),
        ]
    )


def inverted(picture: Image.Image) -> Image.Image:
    """A plain function of a PIL image. It may draw from torch, numpy or random."""
    picture = picture.resize((32, 32))
    return ImageOps.invert(picture) if torch.rand(()) < 0.5 else picture


def main(epochs: int = 2, instances: int = 1024) -> dict[str, float]:
    data = nf.open_data("glyphs:train")
    data = data.subset(data.sample(0, 0, instances))
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        # one function makes all views; a list has one for each view
        for name, views in (
            ("torchvision", torchvision_views()),
            ("two functions", [torchvision_views(), inverted]),
        ):
            out = Path(folder) / name
            run = nf.pretrain(
                "simclr",
                data,
                out,
                views=views,
                backbone="resnet8-w16",
                batch_size=64,
                epochs=epochs,
                quiet=True,
            )
            figures[name] = nf.evaluate(run, "glyphs:test", protocols=["knn"])["knn"]["top1"]
            print(f"{name}: kNN {100 * figures[name]:.1f} % on unseen typefaces")
    return figures


if __name__ == "__main__":
    main()
