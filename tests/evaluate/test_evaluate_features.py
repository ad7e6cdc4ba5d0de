"""Features are computed without touching the encoder, and a cache never returns numbers it did not store."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nearfar.core.types import Pixels
from nearfar.modalities.image.show import pixels_features
from nearfar.run.features import cached_features, features, features_key


@dataclass(frozen=True)
class PictureSet:
    """A data set in memory, images of two sizes."""

    pixels: np.ndarray
    fingerprint: str = "f"
    name: str = "pictures"
    labels: np.ndarray | None = None
    classes: tuple[str, ...] = ()

    @property
    def channels(self) -> int:
        return int(self.pixels.shape[-1])

    def __len__(self) -> int:
        return len(self.pixels)

    def load(self, index: np.ndarray) -> Pixels:
        return Pixels(self.pixels[index], np.full((len(index), 2), self.pixels.shape[1], np.int32))


def pictures(count: int = 37, side: int = 12, fingerprint: str = "f") -> PictureSet:
    pixels = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    return PictureSet(pixels, fingerprint)


@dataclass(frozen=True)
class Centre:
    """The central size × size pixels, shifted by `mean`."""

    size: int = 8
    mean: float = 0.5

    def __call__(self, pixels: Pixels, seed: int, epoch: int, index: np.ndarray) -> tuple[Tensor]:
        margin = (pixels.data.shape[1] - self.size) // 2
        cut = pixels.data[:, margin : margin + self.size, margin : margin + self.size]
        return (torch.from_numpy(cut).permute(0, 3, 1, 2).float() / 255 - self.mean,)


def encoder() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    with torch.no_grad():
        net.get_buffer("1.running_mean").normal_()
        net.get_buffer("1.running_var").uniform_(0.5, 2)
    return net


# kernels sum in different orders for different batch sizes and CPUs: 3 x 3 x 3 products, a
# norm and a mean over a map, about a hundred roundings of half an eps each, on either side
ROUNDING = 100 * torch.finfo(torch.float32).eps


def test_features_are_the_encoder_in_evaluation_mode() -> None:
    net, images = encoder().train(), pictures()
    expected = encoder().eval()(Centre()(images.load(np.arange(37)), 0, 0, np.arange(37))[0])
    result = features(net, images, Centre(), batch_size=10, device="cpu")
    assert result.dtype == torch.float32
    assert not result.is_inference()
    torch.testing.assert_close(result, expected, rtol=0, atol=ROUNDING * float(expected.detach().abs().max()))


def test_batches_and_workers_do_not_matter() -> None:
    net, images = encoder(), pictures()
    full = features(net, images, Centre(), batch_size=64, workers=0)
    for batch_size, workers in ((1, 0), (7, 1), (36, 3)):
        result = features(net, images, Centre(), batch_size=batch_size, workers=workers)
        torch.testing.assert_close(result, full, rtol=0, atol=ROUNDING * float(full.abs().max()))


def test_the_encoder_is_restored() -> None:
    net = encoder().train()
    net[3].eval()  # a part frozen by its owner stays frozen, the others stay in training
    initial = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [part.training for part in net.modules()]
    features(net, pictures(), Centre(), precision="bf16")
    assert [part.training for part in net.modules()] == modes
    assert initial.keys() == net.state_dict().keys()
    assert all(torch.equal(initial[name], value) for name, value in net.state_dict().items())
    assert all(parameter.requires_grad and parameter.grad is None for parameter in net.parameters())


def test_modes_are_restored_after_an_error() -> None:
    net = encoder().train()
    with pytest.raises(RuntimeError, match="channels"):
        features(net, PictureSet(pictures().pixels[..., :1]), Centre())
    assert all(part.training for part in net.modules())


def test_bf16_is_close_to_fp32() -> None:
    full = features(encoder(), pictures(), Centre())
    half = features(encoder(), pictures(), Centre(), precision="bf16")
    assert half.dtype == torch.float32
    assert 0 < (full - half).abs().max() < 0.05


def test_pixels_are_the_plain_view() -> None:
    images = pictures()
    view = Centre()(images.load(np.arange(37)), 0, 0, np.arange(37))[0]
    assert torch.equal(pixels_features(images, Centre(), batch_size=5), view.flatten(1))


def test_large_views_are_averaged_to_32() -> None:
    images = pictures(count=3, side=64)
    view = Centre(64)(images.load(np.arange(3)), 0, 0, np.arange(3))[0]
    blocks = view.reshape(3, 3, 32, 2, 32, 2).mean((3, 5))
    assert torch.allclose(pixels_features(images, Centre(64)), blocks.flatten(1), atol=1e-6)


def test_key_changes_with_what_the_features_depend_on() -> None:
    net, images, view = encoder(), pictures(), Centre()
    key = features_key(net, images, view)
    assert key == features_key(encoder(), pictures(), Centre())
    moved, tracked = encoder(), encoder()
    with torch.no_grad():
        next(moved.parameters()).view(-1)[0] += 1e-6
        tracked.get_buffer("1.running_mean")[0] += 1e-6
    changed_keys = [
        features_key(moved, images, view),
        features_key(tracked, images, view),
        features_key(nn.Sequential(*encoder()[:2], nn.GELU(), *encoder()[3:]), images, view),
        features_key(net, pictures(fingerprint="g"), view),
        features_key(net, images, Centre(size=6)),
        features_key(net, images, Centre(mean=0.4)),
    ]
    assert len({key, *changed_keys}) == 7


class CountingViews:
    """Features that know how often they were computed."""

    def __init__(self) -> None:
        self.value = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
        self.times = 0

    def __call__(self) -> Tensor:
        self.times += 1
        return self.value


def test_cache_computes_once(tmp_path: Path) -> None:
    source = CountingViews()
    for _ in range(3):
        assert torch.equal(cached_features(tmp_path / "cache", "a", source), source.value)
    assert source.times == 1
    cached_features(tmp_path / "cache", "b", source)
    assert source.times == 2
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["a.safetensors", "b.safetensors"]


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_damaged_cache_is_computed_again(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder, source = tmp_path_factory.mktemp("cache"), CountingViews()
    cached_features(folder, "a", source)
    path = folder / "a.safetensors"
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans(), label="cut"):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    # a byte of padding may change without a number changing; then the stored numbers are still right
    assert torch.equal(cached_features(folder, "a", source), source.value)
    assert torch.equal(cached_features(folder, "a", lambda: torch.zeros(1, 1)), source.value)


def test_every_flipped_number_is_noticed(tmp_path: Path) -> None:
    source = CountingViews()
    cached_features(tmp_path, "a", source)
    path = tmp_path / "a.safetensors"
    content = path.read_bytes()
    for place in range(len(content) - 9 * 4 * 4 - 32, len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        previous = source.times
        assert torch.equal(cached_features(tmp_path, "a", source), source.value)
        assert source.times == previous + 1


def test_features_are_returned_where_nothing_can_be_written(tmp_path: Path) -> None:
    blocker = tmp_path / "cache"
    blocker.write_text("a file where the folder should be")
    source = CountingViews()
    assert torch.equal(cached_features(blocker, "a", source), source.value)
    assert blocker.read_text().startswith("a file")
