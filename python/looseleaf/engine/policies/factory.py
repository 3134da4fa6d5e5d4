"""From a policy's name to the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from looseleaf.engine.config import StepLimits
from looseleaf.engine.policies.base import SchedulingPolicy
from looseleaf.engine.policies.cost import CostPolicy
from looseleaf.engine.policies.fcfs import FcfsPolicy
from looseleaf.engine.policies.priority import PriorityPolicy

if TYPE_CHECKING:
    from looseleaf._core import BlockPool, KVCacheManager


def make_policy(limits: StepLimits, manager: KVCacheManager, pool: BlockPool) -> SchedulingPolicy:
    """The policy that ``limits`` names, for the sequences of ``manager``."""
    match limits.scheduling_policy:
        case "fcfs":
            return FcfsPolicy()
        case "priority":
            return PriorityPolicy(limits.priority_aging_steps)
        case "cost":
            return CostPolicy(manager, pool)
