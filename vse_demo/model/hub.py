"""Models on the Hugging Face hub: fetched and sent only when somebody asks for it.

`$HF_ENDPOINT` chooses another server with the same interface, `$HF_TOKEN` says who asks, `$HF_HUB_OFFLINE=1` keeps to
what was fetched before.
"""

from pathlib import Path

from vse_demo.model.storage import FILES
from vse_demo.utils.files import FileError


def fetch_model(name: str) -> Path:
    """Fetch the files of a model, unless they are in the cache of the hub's library.

    Args:
        name: `user/repository`, or `user/repository@revision`.

    Raises:
        FileError: If they cannot be fetched.
    """
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=list(FILES)))
    except Exception as error:  # of the hub, of its HTTP library, or of the disk
        raise FileError(f"the hub gave no model {name}: {_first_line(error)}") from error


def send_model(folder: Path, name: str, private: bool, token: str | None) -> str:
    """Send a saved model to the hub, into a repository that is made if it is not there.

    Returns:
        The address of the commit.

    Raises:
        FileError: If it cannot be sent.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    try:
        api.create_repo(name, private=private, exist_ok=True)
        return str(
            api.upload_folder(repo_id=name, folder_path=folder, commit_message="Send a vse_demo model").commit_url
        )
    except Exception as error:  # of the hub, of its HTTP library, or of the disk
        raise FileError(f"the hub did not take {name}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
