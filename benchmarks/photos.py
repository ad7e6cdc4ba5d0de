"""JPEGs to SimCLR's two views at 224 px: CPU time of a picture beside torchvision's, and beside other decoders.

    OMP_NUM_THREADS=1 python benchmarks/photos.py DATA [--pictures 64] [--turns 5] [--encoder]

DATA is a folder of JPEGs, or a Parquet file of small pictures. Those are enlarged to 500 × 375 pixels, with noise in place
of the detail that they lack, and saved with quality 90. Bytes are in memory. One thread; arms take turns; the figure is
the median over the turns.

"torchvision v2" is a `Dataset` that decodes with Pillow or `torchvision.io`, calls the transform twice, and a
`DataLoader` in this process, so that nothing is sent between processes. Decoders that are not installed are left out.
DALI (`pip install nvidia-dali-cuda120`) decodes on the CPU here, whole pictures, and two random crops of each alone, as
two views that are cropped before decoding would need. `--encoder` adds forward and backward of ResNet-18 on the two views.
"""

import argparse
import importlib.util
import io
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.models import resnet18
from torchvision.transforms import v2

from nearfar.modalities.image.data import padded
from nearfar.modalities.image.decode import decode
from nearfar.modalities.image.views import PIPELINES, Views
from nearfar.system.hardware import keep_freed_memory

SIZE = 224
BATCH = 32
ENCODER_BATCH = 8
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BICUBIC = Image.Resampling.BICUBIC
Arm = Callable[[list[bytes]], object]


def load(data: Path, count: int) -> list[bytes]:
    if data.is_dir():
        return [file.read_bytes() for file in sorted(data.rglob("*.jpg"))[:count]]
    random, rows = np.random.default_rng(0), pq.read_table(data, columns=["image"]).column(0)
    chosen = random.permutation(len(rows))[:count]
    return [enlarged(rows[int(row)].as_py()["bytes"], random) for row in chosen]


def enlarged(data: bytes, random: np.random.Generator) -> bytes:
    picture = np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((500, 375), BICUBIC), np.float32)
    texture = random.normal(0, 12, (188, 250)).astype(np.float32)
    grain = np.asarray(Image.fromarray(texture).resize((500, 375), BICUBIC))[..., None]
    noisy = picture + grain + random.normal(0, 9, picture.shape)
    out = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def decoders() -> dict[str, Callable[[bytes], object]]:
    arms: dict[str, Callable[[bytes], object]] = {
        "nearfar": lambda data: decode(data, SIZE),
        "Pillow": lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB")),
        "torchvision.io": read_tensor,
    }
    if importlib.util.find_spec("cv2"):
        import cv2

        cv2.setNumThreads(1)
        arms["opencv"] = lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if importlib.util.find_spec("simplejpeg"):
        import simplejpeg

        arms["simplejpeg"] = simplejpeg.decode_jpeg
    if importlib.util.find_spec("pyvips"):
        import pyvips

        pyvips.cache_set_max(0)
        arms["pyvips"] = lambda data: pyvips.Image.new_from_buffer(data, "", access="sequential").numpy()
    if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali"):
        arms |= {"DALI": dali(crops=0), "DALI, two crops of each": dali(crops=2)}
    return arms


def dali(crops: int) -> Callable[[bytes], object]:
    """DALI's pipeline on one thread of the CPU: whole pictures, or so many random crops of SimCLR's size."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(
        batch_size=1,
        num_threads=1,
        device_id=None,
        prefetch_queue_depth=1,
        exec_async=False,
        exec_pipelined=False,
    )
    def pipeline() -> object:
        data = fn.external_source(name="data", no_copy=True)
        if not crops:
            return fn.decoders.image(data)
        return tuple(fn.decoders.image_random_crop(data, random_area=[0.08, 1.0]) for _ in range(crops))

    built = pipeline()
    built.build()

    def run(data: bytes) -> object:
        built.feed_input("data", [np.frombuffer(data, np.uint8)])
        return built.run()

    return run


def read_tensor(data: bytes) -> torch.Tensor:
    return decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB)


def read_picture(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def peer_transform() -> Callable[[object], torch.Tensor]:
    """SimCLR's view as torchvision's documentation writes it."""
    return v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(SIZE, scale=(0.08, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            v2.RandomGrayscale(0.2),
            v2.RandomApply([v2.GaussianBlur(23, (0.1, 2.0))], p=0.5),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )


class TwoViews(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, pictures: list[bytes], read: Callable[[bytes], object]) -> None:
        self.pictures, self.read, self.transform = pictures, read, peer_transform()

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        picture = self.read(self.pictures[place])
        return self.transform(picture), self.transform(picture)


def view_arms() -> dict[str, Arm]:
    views = Views(PIPELINES["simclr"], SIZE, MEAN, STD)

    def ours(pictures: list[bytes]) -> None:
        for start in range(0, len(pictures), BATCH):
            batch = [decode(data, SIZE) for data in pictures[start : start + BATCH]]
            views(padded(batch), 0, 0, np.arange(start, start + len(batch)))

    def peer(read: Callable[[bytes], object]) -> Arm:
        return lambda pictures: [None for _ in DataLoader(TwoViews(pictures, read), BATCH)]

    return {
        "nearfar": ours,
        "torchvision v2, Pillow": peer(read_picture),
        "torchvision v2, torchvision.io": peer(read_tensor),
    }


def encoder_arm(precision: torch.dtype) -> Callable[[], object]:
    torch.manual_seed(0)
    network = resnet18().to(memory_format=torch.channels_last)
    views = torch.randn(2 * ENCODER_BATCH, 3, SIZE, SIZE).to(memory_format=torch.channels_last)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision is torch.bfloat16):
            out = network(views)
        out.float().square().mean().backward()

    return step


def compare(arms: dict[str, Callable[[], object]], count: int, turns: int) -> dict[str, float]:
    """Milliseconds of CPU time for a picture, printed as a table."""
    costs: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(turns + 1):
        for name, arm in arms.items():
            start = time.process_time()
            arm()
            if turn:  # the first compiles and fills caches
                costs[name].append(1000 * (time.process_time() - start) / count)
    medians = {name: statistics.median(values) for name, values in costs.items()}
    for name, value in medians.items():
        print(
            f"| {name} | {value:.2f} | {min(costs[name]):.2f} to {max(costs[name]):.2f} | {1000 / value:,.0f} |"
        )
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--pictures", type=int, default=64)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--encoder", action="store_true")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    pictures = load(options.data, options.pictures)
    print(f"{len(pictures)} pictures of {sum(map(len, pictures)) / len(pictures) / 1024:.0f} KiB")
    print("| | CPU ms an image | lowest to highest | images/s of a core |\n|---|---|---|---|")
    print("decoding alone")
    compare(
        {
            name: lambda read=read: [read(data) for data in pictures]  # type: ignore[misc]
            for name, read in decoders().items()
        },
        len(pictures),
        options.turns,
    )
    print("decoding and two views")
    whole = compare(
        {name: lambda arm=arm: arm(pictures) for name, arm in view_arms().items()},  # type: ignore[misc]
        len(pictures),
        options.turns,
    )
    if options.encoder:
        print(f"ResNet-18, forward and backward of two views, batch {ENCODER_BATCH}")
        steps = {"fp32": encoder_arm(torch.float32), "bf16": encoder_arm(torch.bfloat16)}
        for name, cost in compare(steps, ENCODER_BATCH, options.turns).items():
            print(
                f"decoding and views are {whole['nearfar'] / (whole['nearfar'] + cost):.1%} of both in {name}"
            )


if __name__ == "__main__":
    main()
