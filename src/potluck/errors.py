"""All errors that Potluck raises deliberately.

    PotluckError
    ├── UsageError               the caller made an invalid request (exit code 2)
    │   ├── ParameterError       a parameter has a value that is not allowed
    │   └── PromptTooLongError   a prompt does not fit in the context
    ├── ModelNotFoundError       nothing usable at the given path or hub id
    ├── ModelFileError           a file is truncated, corrupt, or contradicts another
    │   └── DamagedChunkError        bytes of a file do not have the expected SHA-256
    ├── StoreFullError           bytes cannot be stored: the limit is reached, or the disk is full
    ├── TransferError            bytes of a file are not available from any node or the hub
    ├── WheelFileError           a wheel is broken or malicious, or the file is not a wheel
    ├── WheelDownloadError       pip found no wheel, could not download it, or is not installed
    ├── UnsupportedModelError    a valid model that this build cannot run
    ├── ChatTemplateError        a chat template is absent or broken, or refuses the messages
    ├── ElfError                 a file is not a valid ELF file
    │   └── NotLoadableError     a valid one of a kind that no dynamic linker loads
    ├── HostError                a host cannot be described, or its description is broken
    ├── FatBinaryError           the GPU code of a library is malformed or truncated
    ├── InsufficientMemoryError  it does not fit in the usable memory
    ├── OverloadedError          there is no room for more requests now
    ├── EngineError              the compiled core is missing or refused a call
    │   ├── UnitFaultError       a device or its driver failed under an engine
    │   │   └── StalledError     a worker made no progress
    │   ├── DefectError          an unexpected exception stopped the serving of a model
    │   └── MovedError           another node coordinates the deployment, or soon will
    ├── RefusedRequestError      a request has twice stopped the serving of its model
    ├── EdgeError                a connection between two stages failed or was refused
    │   └── EdgeClosedError      it was closed by either side between two frames
    ├── JoinError                a node could not join the cluster
    │   ├── NodeIdInUseError     another agent runs under its id
    │   └── RemovedFromClusterError  the node was removed permanently
    └── CallError                a control call to another node failed
        ├── NodeLostError        the node called is not in the cluster, or left during the call
        └── SilentNodeError      the node called is a member, but does not answer

An error has one line that says what is wrong (``message``) and one that says what to do about it
(``hint``). The command line prints both without a traceback; programs read the fields.
"""

from __future__ import annotations


class PotluckError(Exception):
    """Base of the tree. ``message`` is one line; ``hint`` is one line or empty."""

    exit_code: int = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = _encodable(message)
        self.hint = _encodable(hint)


class UsageError(PotluckError):
    """The caller made an invalid request."""

    exit_code = 2


class ParameterError(UsageError):
    """The parameter ``name`` has a value that is not allowed."""

    def __init__(self, name: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.name = name


class PromptTooLongError(UsageError):
    """A prompt of ``num_tokens`` does not fit in a context of ``context_tokens``.

    ``is_least``: it was not tokenized to its end, and has that many or more.
    """

    def __init__(self, num_tokens: int, context_tokens: int, *, is_least: bool = False) -> None:
        super().__init__(
            f"the prompt has {'at least ' if is_least else ''}{num_tokens} tokens, but the "
            f"context size is {context_tokens}",
            hint="shorten the prompt, or set a larger --context if the model supports it",
        )
        self.num_tokens = num_tokens
        self.context_tokens = context_tokens


class ModelNotFoundError(PotluckError):
    """There is nothing usable at the given path or hub id."""

    exit_code = 2


class ModelFileError(PotluckError):
    """The file ``path`` is truncated, corrupt, or contradicts another: it has ``problem``."""

    def __init__(self, path: str, problem: str, *, hint: str = "") -> None:
        super().__init__(f"{path}: {problem}", hint=hint or "download or copy the file again")
        self.path = path
        self.problem = problem


class DamagedChunkError(ModelFileError):
    """Chunk ``chunk`` of the file ``path`` does not have the expected SHA-256."""

    def __init__(self, path: str, chunk: int, problem: str, *, hint: str = "") -> None:
        super().__init__(path, f"chunk {chunk} {problem}", hint=hint)
        self.chunk = chunk


class StoreFullError(PotluckError):
    """Bytes cannot be stored: the store's limit is reached, or the disk is full or broken."""


class TransferError(PotluckError):
    """Bytes of a file are not available from any source, or the transfer process ended."""


class WheelFileError(PotluckError):
    """The file ``path`` cannot be read as a wheel, or is malicious: ``problem``."""

    exit_code = 2

    def __init__(self, path: str, problem: str, *, hint: str = "") -> None:
        super().__init__(
            f"{path}: {problem}",
            hint=hint or "do not install it: download the file again from the project's own site",
        )
        self.path = path
        self.problem = problem


class WheelDownloadError(PotluckError):
    """pip found no wheel of a project, could not download it, or is not installed."""

    exit_code = 2


class UnsupportedModelError(PotluckError):
    """The model is valid, but this build cannot run it; ``missing`` names the missing features."""

    def __init__(self, message: str, *, missing: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.missing = missing


class ChatTemplateError(PotluckError):
    """A chat template is absent or broken, or refuses its messages."""


class TemplateLimitError(ChatTemplateError):
    """A chat template takes too many steps, or writes too much, for its messages."""


class ElfError(PotluckError):
    """A file is not a valid ELF file. The caller adds its path."""


class NotLoadableError(ElfError):
    """A valid ELF file that no dynamic linker loads: an object file or a core dump."""


class HostError(PotluckError):
    """A host cannot be described, or its description is broken or missing."""


class FatBinaryError(PotluckError):
    """The GPU code of a library is malformed or truncated; the library itself still loads."""


class InsufficientMemoryError(PotluckError):
    """``needed_bytes`` would not fit in ``available_bytes``."""

    def __init__(self, needed_bytes: int, available_bytes: int, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class OverloadedError(PotluckError):
    """There is no room for another request; retry after ``retry_after_seconds``."""

    def __init__(self, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(message, hint=f"retry in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds


class EngineError(PotluckError):
    """The compiled core is missing, or refused a call."""


DEFECT_HINT = "this is a defect in Potluck; please report it"
"""The hint of an ``EngineError`` that no model, setting or machine can cause."""


class UnitFaultError(EngineError):
    """A device or its driver failed under an engine, which can no longer be used.

    ``fault`` is the value of a ``potluck.types.unit.Fault``.
    """

    def __init__(self, fault: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.fault = fault


class StalledError(UnitFaultError):
    """A worker made no progress while loading or in a step, or does not answer."""


class DefectError(EngineError):
    """An unexpected exception stopped the serving of a model; the log has the traceback."""


class MovedError(EngineError):
    """Another node coordinates the deployment, or soon will: ask that one to continue."""


class RefusedRequestError(PotluckError):
    """A request is refused because it has stopped the serving of its model twice: do not repeat."""


class EdgeError(PotluckError):
    """The connection with ``peer`` (a node id or an address) failed or was refused."""

    def __init__(self, peer: str, reason: str, *, hint: str = "") -> None:
        super().__init__(f"connection to node {peer}: {reason}", hint=hint)
        self.peer = peer
        self.reason = reason


class EdgeClosedError(EdgeError):
    """An edge was closed by either side between two frames, so no frame was truncated."""


class JoinError(PotluckError):
    """A node could not join the cluster."""


class NodeIdInUseError(JoinError):
    """Another agent has been a member as ``node_id`` for longer."""

    def __init__(self, node_id: str, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.node_id = node_id


class RemovedFromClusterError(JoinError):
    """The node ``node_id`` was removed from the cluster permanently."""

    def __init__(self, node_id: str) -> None:
        super().__init__(
            f"node {node_id} was removed from the cluster",
            hint="to rejoin as a new node, use a new invitation: potluck up --join INVITATION",
        )
        self.node_id = node_id


class CallError(PotluckError):
    """A control call to another node failed: there, on the way, or here."""


class NodeLostError(CallError):
    """The node ``node_id`` is not in the cluster, or left it during the call."""

    def __init__(self, node_id: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.node_id = node_id


class SilentNodeError(CallError):
    """A member has sent no part of its answer for too long."""


def _encodable(text: str) -> str:
    """Return ``text`` so that it can be encoded: file names may contain invalid UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
