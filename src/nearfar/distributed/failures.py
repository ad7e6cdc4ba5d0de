"""Why communication failed: a lost process can be resumed, a configuration error cannot."""

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
_BACKENDS = ("gloo", "nccl")


class Failure(NamedTuple):
    """A message for the user, and whether running the same command again can help."""

    message: str
    resumable: bool


def communication_failure(problem: BaseException) -> Failure | None:
    """Returns what a failed exchange between processes means; None if `problem` is something else.

    A lost process and a timeout are resumable. Everything else that a backend reports (two processes on one
    GPU, no backend for CPU tensors) is a configuration error: restarting would repeat it.
    """
    text = str(problem)
    lowered = text.lower()
    names = {kind.__name__ for kind in type(problem).__mro__}
    if "DistNetworkError" in names or any(phrase in lowered for phrase in _LOST_PEER):
        return Failure(
            "another process of this run ended; the same command resumes from what was saved", True
        )
    if not names & {"DistError", "DistBackendError", "DistStoreError"} and not any(
        backend in lowered for backend in _BACKENDS
    ):
        return None
    if any(word in lowered for word in _TIMEOUT):
        return Failure(
            "another process did not answer in time; the same command resumes from what was saved", True
        )
    line = next((line.strip() for line in text.splitlines() if line.strip()), type(problem).__name__)
    return Failure(f"communication between processes failed: {line}", False)
