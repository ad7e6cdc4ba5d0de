"""Why communication failed: a lost process can be resumed, a configuration error cannot."""

import re
from typing import NamedTuple

# messages of gloo, NCCL and torch's store when another process is gone
_LOST_PEER = (
    "connection closed by peer",
    "connection closed by remote peer",
    "connection reset by peer",
    "remote process exited",
    "socket closed",
    "broken pipe",
    "connection was likely closed",
)
_TIMEOUT = ("timed out", "timeout")
_LOST = "another process of this run ended; the same command resumes from what was saved"
_TIMEOUT_MESSAGE = "another process did not answer in time; the same command resumes from what was saved"
_DIST_ERRORS = {"DistError", "DistBackendError", "DistNetworkError", "DistStoreError"}
# addresses that this machine cannot resolve, listen on or bind to
_BAD_ADDRESS = re.compile(
    r"resolve|failed to listen|failed to bind|cannot be retrieved|address already in use"
)
# gloo raises a plain RuntimeError, which starts with the place in gloo's source
_GLOO_SOURCE = re.compile(r"(gloo [\w ]+ with )?\[[^]]*\bgloo/[^]]*:\d+\]")
# other errors of a backend or of the choice of one; a file name such as gloo.png is none
_BACKEND = re.compile(r"(?<![\w./-])(gloo|nccl2?)(?![\w/-]|\.\w)|processgroup(gloo|nccl)|^no backend type")


class Failure(NamedTuple):
    """A message for the user, and whether running the same command again can help."""

    message: str
    resumable: bool


def communication_failure(problem: BaseException) -> Failure | None:
    """Returns what a failed exchange between processes means; None if `problem` is something else.

    A lost process and a timeout are resumable. Everything else that a backend reports (two processes on one
    GPU, no backend for CPU tensors, an address in use) is a configuration error: restarting would repeat it.
    The phrases count only in errors of `torch.distributed` and gloo: data from a network have them too.
    """
    text = str(problem).strip()
    lowered = text.lower()
    names = {kind.__name__ for kind in type(problem).__mro__}
    is_network = "DistNetworkError" in names
    if names & _DIST_ERRORS or _GLOO_SOURCE.match(lowered):
        resumable = not (is_network and _BAD_ADDRESS.search(lowered))
    elif _BACKEND.search(lowered):
        resumable = False
    else:
        return None
    if resumable and any(phrase in lowered for phrase in _LOST_PEER):
        return Failure(_LOST, True)
    if resumable and any(word in lowered for word in _TIMEOUT):
        return Failure(_TIMEOUT_MESSAGE, True)
    if resumable and is_network:
        return Failure(_LOST, True)
    return Failure(
        f"communication between processes failed: {_reason(text) or type(problem).__name__}", False
    )


def _reason(text: str) -> str:
    """The line after NCCL's `Last error:`, otherwise the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "Last error:" in lines[:-1]:
        return lines[lines.index("Last error:") + 1]
    return lines[0] if lines else ""
