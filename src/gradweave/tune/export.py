"""A plan in the words of other stacks, each with the step that is predicted under that stack's own rule.

Where a stack takes a list (DDP's `bucket_cap_mb_list`, Horovod's `groups`, HCCL and MindSpore by index) the plan itself is
written; where it takes one number, the number is searched that ends first under its rule. HCCL takes at most 8 segments, so a
longer plan is solved again with that limit. Pure Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradweave.model import GradientInfo
from gradweave.split import SplitStrategy
from gradweave.tune import stacks
from gradweave.tune.problem import Problem, make_problem
from gradweave.tune.solve import solve_problem
from gradweave.tune.stacks import Grouping

MIB = 1 << 20
_HCCL_MOST = 8
_TRIED = 96
_DECIMALS = 9


@dataclass(frozen=True, slots=True)
class Export:
    """What to give to one stack.

    Attributes:
        stack: its name.
        settings: argument -> value.
        plan: last indices of what would travel together.
        end_s: when communication is predicted to end under the stack's own rule, on the axis of the ready times.
        caveat: what to know; empty where there is nothing.
    """

    stack: str
    settings: dict[str, Any]
    plan: tuple[int, ...]
    end_s: float
    caveat: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**asdict(self), "plan": list(self.plan)}


def exports(problem: Problem, plan: Sequence[int], infos: Sequence[GradientInfo]) -> list[Export]:
    """The plan for every stack.

    Args:
        problem: ready times, sizes and cost that the plan was made for.
        plan: last indices of its segments.
        infos: the gradients, in the same order.

    Example:
        >>> from gradweave.model.cost import AffineCost
        >>> problem = make_problem([0, 2, 5], [8, 4, 4], AffineCost(3.0, 0.25))
        >>> found = exports(problem, [0, 2], [GradientInfo(n, (1,), "float32", s) for n, s in zip("abc", (8, 4, 4))])
        >>> [export.stack for export in found][:3]
        ['DDP bucket_cap_mb_list', 'DDP bucket_cap_mb', 'Horovod groups']
    """
    maker = _Maker(problem, tuple(plan), infos)
    return [
        maker.ddp_list(),
        maker.ddp(),
        maker.horovod_groups(),
        maker.horovod(),
        maker.deepspeed(),
        maker.megatron(),
        maker.mindspore(),
        *maker.hccl(),
        maker.paddle(),
    ]


class _Maker:
    def __init__(self, problem: Problem, plan: tuple[int, ...], infos: Sequence[GradientInfo]) -> None:
        self._problem, self._plan, self._infos = problem, plan, infos
        self._numels = [info.numel for info in infos]

    def _end(self, grouping: Grouping) -> float:
        problem = self._problem
        return grouping.end_s(problem.ready_s, problem.prefix_bytes, problem.cost)

    def _as_it_is(self, stack: str, settings: dict[str, Any], plan: Sequence[int], caveat: str = "") -> Export:
        grouping = Grouping(tuple(plan), tuple(plan))
        return Export(stack, settings, grouping.plan, self._end(grouping), caveat)

    def _searched(
        self, stack: str, name: str, sizes: Sequence[float], rule: Callable[[float], Grouping], unit: float, caveat: str = ""
    ) -> Export:
        """Try numbers from the largest gradient's size to all of them, in even steps of the logarithm."""
        low, high = max(1.0, min(size for size in sizes if size) if any(sizes) else 1.0), max(1.0, sum(sizes))
        tried = sorted({low * (high / low) ** (k / _TRIED) for k in range(_TRIED + 1)})
        best = min(tried, key=lambda value: (self._end(rule(value)), -value))
        grouping = rule(best)
        value = best / unit
        settings = {name: round(value, 6) if unit > 1 else int(value)}
        return Export(stack, settings, grouping.plan, self._end(grouping), caveat)

    def _segment_bytes(self) -> list[int]:
        prefix, firsts = self._problem.prefix_bytes, [0, *(last + 1 for last in self._plan)]
        return [prefix[last + 1] - prefix[first] for first, last in zip(firsts, self._plan, strict=False)]

    def ddp_list(self) -> Export:
        sizes = self._problem.sizes_bytes
        caps = self._segment_bytes()
        grouping = stacks.closes_at(caps, sizes)
        settings = {"bucket_cap_mb_list": [cap / MIB for cap in caps]}
        caveat = (
            "applied in the order of generation from step 2 on; in step 1, and always with find_unused_parameters=True, "
            "to the reverse order of registration"
        )
        return Export("DDP bucket_cap_mb_list", settings, grouping.plan, self._end(grouping), caveat)

    def ddp(self) -> Export:
        sizes = self._problem.sizes_bytes
        return self._searched("DDP bucket_cap_mb", "bucket_cap_mb", sizes, lambda cap: stacks.closes_at([cap], sizes), MIB)

    def horovod_groups(self) -> Export:
        names = [info.name for info in self._infos]
        firsts = [0, *(last + 1 for last in self._plan)]
        groups = [names[first : last + 1] for first, last in zip(firsts, self._plan, strict=False)]
        caveat = "pass the parameters of these names; the fusion threshold must hold the largest group"
        settings = {"groups": groups, "HOROVOD_FUSION_THRESHOLD": max(self._segment_bytes())}
        return self._as_it_is("Horovod groups", settings, self._plan, caveat)

    def horovod(self) -> Export:
        problem = self._problem
        sizes = problem.sizes_bytes
        export = self._searched(
            "Horovod fusion threshold",
            "HOROVOD_FUSION_THRESHOLD",
            sizes,
            lambda size: stacks.cycles(size, sizes, problem.ready_s, problem.cost),
            1,
            "without the negotiation of each cycle (HOROVOD_CYCLE_TIME, 1 ms)",
        )
        return export

    def deepspeed(self) -> Export:
        numels = self._numels
        rule = lambda cap: stacks.closes_before(cap, numels)  # noqa: E731
        caveat = "elements; ZeRO 1 and 2 with overlap_comm"
        return self._searched("DeepSpeed reduce_bucket_size", "reduce_bucket_size", numels, rule, 1, caveat)

    def megatron(self) -> Export:
        numels = self._numels
        rule = lambda cap: stacks.closes_at([cap], numels)  # noqa: E731
        caveat = "elements; in reverse order of registration, with overlap_grad_reduce"
        return self._searched("Megatron bucket_size", "bucket_size", numels, rule, 1, caveat)

    def mindspore(self) -> Export:
        return self._as_it_is("MindSpore", {"all_reduce_fusion_config": list(self._plan)}, self._plan)

    def hccl(self) -> list[Export]:
        problem, plan, caveat = self._problem, self._plan, ""
        if len(plan) > _HCCL_MOST:
            limited = make_problem(problem.ready_s, problem.sizes_bytes, problem.cost, max_segments=_HCCL_MOST)
            plan = solve_problem(limited).plan
            caveat = f"HCCL takes at most {_HCCL_MOST} segments: solved again with that limit"
        prefix = problem.prefix_bytes
        total, firsts = max(1, prefix[-1]), [0, *(last + 1 for last in plan)]
        shares = [
            round(100 * (prefix[last + 1] - prefix[first]) / total, _DECIMALS)
            for first, last in zip(firsts, plan, strict=False)
        ]
        shares[-1] = round(100 - sum(shares[:-1]), _DECIMALS)
        by_idx = self._as_it_is("HCCL by index", {"set_split_strategy_by_idx": list(plan)}, plan, caveat)
        if min(shares) <= 0:
            return [by_idx]
        by_size = SplitStrategy.by_size(shares).boundaries(problem.sizes_bytes)
        return [by_idx, self._as_it_is("HCCL by size", {"set_split_strategy_by_size": shares}, by_size, caveat)]

    def paddle(self) -> Export:
        sizes = self._problem.sizes_bytes
        whole = max(1, -(-sum(sizes) // MIB))
        tried = [(cap, last) for cap in _whole_numbers(whole) for last in _whole_numbers(min(whole, cap))]

        def rule(pair: tuple[int, int]) -> Grouping:
            return stacks.from_the_end(pair[0] * MIB, pair[1] * MIB, sizes)

        best = min(tried, key=lambda pair: (self._end(rule(pair)), -pair[0], pair[1]))
        grouping = rule(best)
        settings = {"fuse_grad_size_in_MB": best[0], "last_comm_buffer_size_MB": best[1]}
        return Export("Paddle", settings, grouping.plan, self._end(grouping), "whole MiB, in the order of registration")


def _whole_numbers(most: int) -> list[int]:
    """Some whole numbers from 1 to `most`, denser below."""
    return sorted({max(1, min(most, round(most ** (k / 20)))) for k in range(21)})
