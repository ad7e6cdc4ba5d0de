"""Uploads an exported folder to the Hugging Face hub."""

from pathlib import Path

from nearfar.errors import UserError
from nearfar.system.extras import need


def push(folder: Path, name: str) -> str:
    """Uploads the folder as a model repository, creating it if needed, and returns its address."""
    hub, errors = need("huggingface_hub"), need("huggingface_hub.errors")
    try:
        hub.create_repo(name, exist_ok=True)
        return str(
            hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Encoder exported by nearfar")
        )
    # no connection, an invalid name, an error response
    except (OSError, ValueError, errors.HTTPError) as problem:
        raise UserError(
            f"--push {name} failed ({str(problem).splitlines()[0]}); the folder {folder} is complete, so "
            "upload it later"
        ) from None
