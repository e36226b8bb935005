"""Transfer bytes of model files from any source, through one process per node.

``supervisor`` is the agent's view of that process, ``client`` what workers and the agent read files
through, and ``messages`` what both send to it over a ``channel``. The rest runs in the process:
``board`` knows what is here, what is wanted and who should provide it; ``peer_lane``,
``peer_session`` and ``peer_frames`` move chunks between nodes, ``hub_lane`` downloads them from the
hub, ``window`` holds them if no disk does or only peers want them, and ``share`` leaves the link to
a running deployment. All of it is blocking code in threads; hashing, TLS and system calls release
the interpreter's lock.

The board consists of parts that share the lock of ``changes``. Their state is in ``jobs`` (what the
agent said), ``demand`` (what is wanted), ``file_table`` (what is here) and ``assignments`` (who
provides what); ``fetch_order`` decides what is requested next. Each kind of thread uses one
interface of it: ``lane_work``, or one of the two in ``reading``.
"""

__all__ = ["client", "messages", "peer_frames", "share", "supervisor"]
