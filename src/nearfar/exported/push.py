"""An exported folder to the Hugging Face hub."""

from pathlib import Path

from nearfar.errors import UserError
from nearfar.system.extras import need


def push(folder: Path, name: str) -> str:
    """Uploads the folder as a model repository, made if need be, and returns its address."""
    hub, errors = need("huggingface_hub"), need("huggingface_hub.errors")
    try:
        hub.create_repo(name, exist_ok=True)
        return str(
            hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Encoder exported by nearfar")
        )
    # what the hub answers is the first, a name it refuses the second, a hub that is not there the third
    except (OSError, ValueError, errors.HTTPError) as problem:
        raise UserError(
            f"--push {name} failed ({str(problem).splitlines()[0]}); the folder {folder} is complete, so upload it later"
        ) from None
