"""Services that deployed tools ask for and this broker does not have: a scheduler (``resource``, ``job-manager``, for
``flux uptime``, ``flux resource`` and ``flux housekeeping``) and remote execution (``rexec``).
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, Final

from broker.errors import RpcError
from broker.identity import Role
from broker.services import idset
from broker.services.groups import ONLINE, TORPID, Groups
from broker.services.service import Service, method
from broker.serving.request import Request
from broker.serving.runner import OWNER_TEXT

ABSENT_TEXT: Final = "headgate runs no scheduler"
OFF_TEXT: Final = "remote execution is off: this broker starts no processes"


class Resource(Service):
    """An inventory of the brokers, without anything to schedule on them; those that are down are known all the same."""

    name = "resource"

    def unknown(self, request: Request) -> RpcError:
        """ENOSYS with a text that says why."""
        return RpcError(errno.ENOSYS, ABSENT_TEXT)

    @method("status", allow=Role.USER)
    def status(self, request: Request) -> Mapping[str, Any]:
        """-> ``{"R", "drain", "online", "offline", "exclude", "torpid"}``; rank 0 only."""
        if self.context.rank != 0:
            raise RpcError(errno.EPROTO, "this RPC only works on rank 0")
        groups = self.services.find(Groups)
        online = groups.members(ONLINE)
        hosts = self.context.attributes["hostlist"][0]
        nodes = {
            "R_lite": [{"rank": idset.encode(range(self.context.size)), "children": {"core": ""}}],
            "starttime": 0.0,
            "expiration": 0.0,
            "nodelist": [hosts() if callable(hosts) else hosts],
        }
        return {
            "R": {"version": 1, "execution": nodes},
            "drain": {},
            "online": idset.encode(online),
            "offline": idset.encode(rank for rank in range(self.context.size) if rank not in online),
            "exclude": "",
            "torpid": idset.encode(groups.members(TORPID)),
        }


class JobManager(Service):
    """A queue that takes no jobs."""

    name = "job-manager"
    root_only = True  # as deployed: below rank 0, requests go up to the one there

    def unknown(self, request: Request) -> RpcError:
        """ENOSYS with a text that says why."""
        return RpcError(errno.ENOSYS, ABSENT_TEXT)

    def stats(self) -> Mapping[str, Any]:
        """Figures of no job at all, in the form that ``flux resource`` and ``flux housekeeping`` read."""
        return {
            "journal": {"listeners": 0},
            "active_jobs": 0,
            "inactive_jobs": 0,
            "max_jobid": 0,
            "housekeeping": {"running": {}, "config": {"release-after": -1.0, "command": ""}},
        }

    @method("queue-list", allow=Role.USER)
    def queues(self, request: Request) -> Mapping[str, Any]:
        """-> ``{"queues": []}``: there is only the anonymous one."""
        return {"queues": []}

    @method("queue-status", allow=Role.USER)
    def queue_status(self, request: Request) -> Mapping[str, Any]:
        """``{}`` -> the anonymous queue, disabled and stopped; another ``name`` is EINVAL."""
        name = request.field("name", str, "")
        if name:
            raise RpcError(errno.EINVAL, f"'{name[:64]}' is not a valid queue")
        return {"enable": False, "start": False, "disable_reason": ABSENT_TEXT, "stop_reason": ABSENT_TEXT}


class Rexec(Service):
    """Remote execution is off: every method is refused with EPERM.

    The methods of deployed brokers are for owners, so guests are refused for that reason first.
    """

    name = "rexec"

    def unknown(self, request: Request) -> RpcError:
        """EPERM, whatever the method."""
        return RpcError(errno.EPERM, OFF_TEXT if request.owner else OWNER_TEXT)
