"""Which machine this process is on, as far as communication is concerned.

The identity is compared among live ranks and means nothing elsewhere. It is built neither from ranks that a
launcher numbers (wrong by hand or by scheduler) nor from the machine id (equal on cloned images).
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")


def node_identity() -> str:
    """Equal for processes that reach each other without a network, different otherwise.

    `NCCL_HOSTID`, or host name and boot id, with the network namespace: containers of one host that do not share
    a network stack talk over a network. Where there is no /proc, the host name alone.
    """
    host = os.environ.get("NCCL_HOSTID") or "/".join(filter(None, (socket.gethostname(), _boot_id())))
    return "/".join(filter(None, (host, _network_namespace())))


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _network_namespace() -> str:
    try:
        return f"net:{_NETWORK_NAMESPACE.stat().st_ino}"
    except OSError:
        return ""
