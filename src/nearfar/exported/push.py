"""An exported folder to the Hugging Face hub."""

from pathlib import Path

from nearfar.errors import UserError
from nearfar.extras import need


def push(folder: Path, name: str) -> str:
    """Uploads the folder as a model repository, made if need be, and returns its address."""
    hub = need("huggingface_hub")
    try:
        hub.create_repo(name, exist_ok=True)
        return str(
            hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Encoder exported by nearfar")
        )
    except (OSError, ValueError) as problem:  # its HTTP errors are the first, a name it refuses the second
        raise UserError(
            f"--push {name} failed ({str(problem).splitlines()[0]}); the folder {folder} is complete, so upload it later"
        ) from None
