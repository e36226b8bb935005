"""Every error that Potluck raises on purpose.

    PotluckError
    ├── UsageError               the caller asked for something that makes no sense (exit code 2)
    │   ├── ParameterError       a parameter has a value that is not allowed
    │   └── PromptTooLongError   a prompt does not fit in the context
    ├── ModelNotFoundError       nothing at the path or hub id given
    ├── ModelFileError           a file is truncated, corrupt, or contradicts another
    │   └── DamagedChunkError        bytes of a file do not have the SHA-256 that they must have
    ├── StoreFullError           bytes cannot be kept: the limit is reached or the disk is full
    ├── TransferError            bytes of a file cannot be had from any node or the hub
    ├── WheelFileError           a wheel, or a file in it, is broken, hostile or no wheel at all
    ├── WheelDownloadError       pip found no wheel, could not download it, or is not there
    ├── UnsupportedModelError    a sound model that this build cannot run
    ├── ChatTemplateError        a chat template is absent or broken, or refuses the messages
    ├── ElfError                 a file is no ELF file, or a broken one
    │   └── NotLoadableError     a sound one of a kind that no dynamic linker loads
    ├── HostError                a host that cannot be described, a broken description
    ├── FatBinaryError           what should be GPU code in a library is not, or is cut short
    ├── InsufficientMemoryError  it would not fit in the memory that may be used
    ├── OverloadedError          there is no room for more requests now
    ├── EngineError              the compiled core is missing or refused a call
    │   ├── UnitFaultError       a device or its driver failed under an engine
    │   │   └── StalledError     a worker got no further while it loaded
    │   ├── DefectError          an exception that nobody expected ended what served a model
    │   └── MovedError           another node coordinates the deployment, or soon will
    ├── RefusedRequestError      a request that has ended what served a model twice
    ├── EdgeError                a connection between two stages failed or was refused
    │   └── EdgeClosedError      it was closed, by either side, between two frames
    ├── JoinError                a node could not take its place in the cluster
    │   ├── NodeIdInUseError     another agent runs under its id
    │   └── RemovedFromClusterError  the others refuse it, for good
    └── CallError                a control call to another node failed
        ├── NodeLostError        the node called is not in the cluster, or left during the call
        └── SilentNodeError      the node called is there, and says nothing

An error says what is wrong in one line (``message``) and what to do about it (``hint``). The
command line prints both and no traceback; programs read the fields.
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
    """The caller asked for something that makes no sense."""

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
    """Nothing usable at the path or hub id given."""

    exit_code = 2


class ModelFileError(PotluckError):
    """The file ``path`` is truncated, corrupt, or contradicts another: it has ``problem``."""

    def __init__(self, path: str, problem: str, *, hint: str = "") -> None:
        super().__init__(f"{path}: {problem}", hint=hint or "download or copy the file again")
        self.path = path
        self.problem = problem


class DamagedChunkError(ModelFileError):
    """Chunk ``chunk`` of the file ``path`` does not have the SHA-256 that it must have."""

    def __init__(self, path: str, chunk: int, problem: str, *, hint: str = "") -> None:
        super().__init__(path, f"chunk {chunk} {problem}", hint=hint)
        self.chunk = chunk


class StoreFullError(PotluckError):
    """Bytes cannot be kept in a store: its limit is reached, or the disk is full or broken."""


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
    """The model is sound but this build cannot run it; ``missing`` names what it lacks."""

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
    """A sound ELF file that no dynamic linker loads: an object file, a core dump."""


class HostError(PotluckError):
    """A host cannot be described, or a description of one is broken or not there."""


class FatBinaryError(PotluckError):
    """The GPU code of a library is malformed or truncated; the library itself still loads."""


class InsufficientMemoryError(PotluckError):
    """``needed_bytes`` would not fit in ``available_bytes``."""

    def __init__(self, needed_bytes: int, available_bytes: int, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class OverloadedError(PotluckError):
    """There is no room for another request now; after ``retry_after_seconds`` there may be."""

    def __init__(self, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(message, hint=f"retry in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds


class EngineError(PotluckError):
    """The compiled core is missing, or refused a call."""


class UnitFaultError(EngineError):
    """A device or its driver failed under an engine, which is of no use any more.

    ``fault`` is the value of a ``potluck.types.unit.Fault``.
    """

    def __init__(self, fault: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.fault = fault


class StalledError(UnitFaultError):
    """A worker got no further, while it loaded or in a step, or does not answer."""


class DefectError(EngineError):
    """An exception that nobody expected ended what served a model; the log has the traceback."""


class MovedError(EngineError):
    """Another node coordinates the deployment, or soon will: ask that one to continue."""


class RefusedRequestError(PotluckError):
    """A request is not computed, as it has ended what served its model twice: do not repeat it."""


class EdgeError(PotluckError):
    """The connection with ``peer`` (a node id or an address) failed or was refused."""

    def __init__(self, peer: str, reason: str, *, hint: str = "") -> None:
        super().__init__(f"connection to node {peer}: {reason}", hint=hint)
        self.peer = peer
        self.reason = reason


class EdgeClosedError(EdgeError):
    """An edge was closed, by either side, between two frames: nothing was cut off."""


class JoinError(PotluckError):
    """A node could not take its place in the cluster."""


class NodeIdInUseError(JoinError):
    """Another agent takes part as ``node_id``, and has done so for longer."""

    def __init__(self, node_id: str, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.node_id = node_id


class RemovedFromClusterError(JoinError):
    """The node ``node_id`` was removed from the cluster: no other will ever take it again."""

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
    """A node that is in the cluster has sent no part of its answer for too long."""


def _encodable(text: str) -> str:
    """Return ``text`` so that it can be encoded: file names may contain invalid UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
