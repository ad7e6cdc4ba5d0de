"""An exported encoder as a module, loaded from and saved to a folder or the Hugging Face hub.

encoder = nf.Encoder.from_pretrained("exported/")       # or "owner/name"
features = encoder(views)
encoder.push_to_hub("owner/name")
"""

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearfar.config.resolving import check
from nearfar.errors import UserError, error_reason
from nearfar.exported.write import CONFIG, WEIGHTS, is_export
from nearfar.modalities import MODALITIES
from nearfar.parts.encoders.portable import keys_of_body
from nearfar.run.trained import fresh_method
from nearfar.run.weights import load_tensors
from nearfar.system.extras import need
from nearfar.system.files import recover_folder
from nearfar.system.untrusted import open_regular_file, read_json

_hub = need("huggingface_hub")
# bytes that a network may have beyond twice its weights file: buffers that are not saved
ALLOWED_EXCESS = 2**20


class Encoder(nn.Module, _hub.ModelHubMixin):  # type: ignore[misc,name-defined,unused-ignore]
    """The frozen network of an exported folder: views -> features; `config` is its config.json."""

    def __init__(self, network: nn.Module, config: dict[str, Any], folder: Path) -> None:
        super().__init__()
        self.network, self.config, self.folder = network.eval().requires_grad_(False), config, folder

    def forward(self, views: Tensor) -> Tensor:
        return self.network(views)

    def _save_pretrained(self, save_directory: Path) -> None:
        shutil.copytree(self.folder, save_directory, dirs_exist_ok=True)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Any:
        """Loads an exported folder, or a repository of the hub if the folder does not exist."""
        with suppress(OSError):  # an export may have been killed while it replaced this one
            recover_folder(Path(os.path.realpath(pretrained_model_name_or_path)))
        folder = Path(pretrained_model_name_or_path)
        if folder.is_dir():  # the mixin would read config.json unchecked, and a pipe would block it
            check_export(folder)
        return super().from_pretrained(pretrained_model_name_or_path, **options)

    @classmethod
    def _from_pretrained(
        cls, *, model_id: str, backbone: nn.Module | None = None, **options: Any
    ) -> "Encoder":
        """Loads the encoder; `backbone` is the module for exports of a custom network."""
        folder = Path(model_id)
        if not folder.is_dir():
            hub_options = ("revision", "cache_dir", "force_download", "local_files_only", "token")
            download_options = {key: value for key, value in options.items() if key in hub_options}
            folder = Path(_hub.snapshot_download(model_id, **download_options))
        return open_export(folder, backbone)


def check_export(folder: Path) -> None:
    if not is_export(folder):
        raise UserError(f"{folder} is not an exported encoder; create one with nearfar export RUN --to DIR")


def open_export(folder: Path, backbone: nn.Module | None = None) -> Encoder:
    """Loads an encoder from a folder that `export` wrote."""
    check_export(folder)
    config = read_json(folder / CONFIG)
    try:
        return _open_checked(folder, config, folder / WEIGHTS, backbone)
    except UserError:
        raise
    # config.json may be damaged or hostile: any missing key, wrong type or wrong size ends here
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as problem:
        reason = f"{type(problem).__name__}: {error_reason(problem)}"
        raise UserError(f"{folder / CONFIG} does not describe an encoder ({reason})") from None


def _open_checked(folder: Path, config: dict[str, Any], file: Path, backbone: nn.Module | None) -> Encoder:
    try:
        with open_regular_file(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            same_size = size == config["weights"]["bytes"]
            digest = hashlib.file_digest(opened, "sha256").hexdigest() if same_size else ""
    except OSError as problem:
        raise UserError(f"{file} cannot be read: {problem.strerror or problem}") from None
    if digest != config["weights"]["sha256"]:
        raise UserError(f"{file} is damaged: its size or SHA-256 differs from {CONFIG}; export again")
    weights = load_tensors(file)
    if backbone is None and config["architecture"]["library"] == "own":
        raise UserError(
            f"{folder} contains the weights of a custom network ({config['architecture']['name']}); pass it: "
            "Encoder.from_pretrained(folder, backbone=my_module)"
        )
    if backbone is not None:
        backbone.load_state_dict(weights)
        return Encoder(backbone, config, folder)
    with torch.device("meta"):  # allocates nothing, whatever sizes config.json names
        described = sum(
            value.numel() * value.element_size() for value in _build_network(config).state_dict().values()
        )
    if described > 2 * size + ALLOWED_EXCESS:
        raise UserError(
            f"{folder / CONFIG} describes a network of {described:,} bytes; {file.name} has {size:,}"
        )
    network = _build_network(config)
    network.load_state_dict(keys_of_body(network, weights))
    return Encoder(network, config, folder)


def _build_network(config: dict[str, Any]) -> nn.Module:
    """Builds the network from the stored settings, with initial weights."""
    training = config["training"]
    modality = MODALITIES[config["input"]["modality"]]
    description = modality.reader.description(
        {key: value for key, value in training["data"].items() if key != "name"}
    )
    settings = check(training["settings"], stored=True)
    with torch.random.fork_rng(devices=[]):
        # the memory bank is not part of the encoder
        return fresh_method(settings, description).encoders.backbone()


def push(folder: Path, name: str) -> str:
    """Uploads the folder as a model repository, creating it if needed, and returns its address."""
    errors = need("huggingface_hub.errors")
    try:
        _hub.create_repo(name, exist_ok=True)
        return str(
            _hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Encoder exported by nearfar")
        )
    # no connection, an invalid name, an error response
    except (OSError, ValueError, errors.HTTPError) as problem:
        raise UserError(
            f"--push {name} failed ({error_reason(problem)}); the folder {folder} is complete, so "
            "upload it later"
        ) from None
