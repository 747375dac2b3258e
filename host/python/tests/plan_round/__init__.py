"""A round of every protocol out of `plan.json`, with no other knowledge of memory than what that says."""

from .a2 import Servers, Windows
from .a3 import Direct, Records


def of(plan, case):
    """The round of that plan and case."""
    names = {m["name"] for m in plan["maps"]}
    if "near slots" in names:
        return Servers(plan, case)
    if "windows in" in names:
        return Windows(plan, case)
    return (Direct if "direct records" in names else Records)(plan, case)
