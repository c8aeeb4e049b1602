"""One family of errors.

Every error a user can cause says three things: the value that is wrong, the rule it breaks and the way out; where there is a
rank, a group or a step, it names them too. `assert` is kept for mistakes of the programmer.
"""

from __future__ import annotations


class GradweaveError(Exception):
    """The root of all errors that Gradweave raises on purpose.

    Args:
        what: what is wrong, with the value.
        rule: the rule that the value breaks.
        fix: what to do about it.
        rank: global rank that raises, where there is one.
        group: name of the group, where there is one.
        step: iteration (from 0), where there is one.

    Example:
        >>> str(SplitError("index 7 is too large", rule="the last index is 5", fix="end the list with 5"))
        'index 7 is too large. Rule: the last index is 5. Fix: end the list with 5.'
    """

    def __init__(
        self,
        what: str,
        *,
        rule: str | None = None,
        fix: str | None = None,
        rank: int | None = None,
        group: str | None = None,
        step: int | None = None,
    ) -> None:
        self.what, self.rule, self.fix = what, rule, fix
        self.rank, self.group, self.step = rank, group, step
        super().__init__(self._message())

    def _message(self) -> str:
        where = ", ".join(
            f"{key} {value}"
            for key, value in (("rank", self.rank), ("group", self.group), ("step", self.step))
            if value is not None
        )
        parts = [f"[{where}] {self.what}" if where else self.what]
        if self.rule:
            parts.append(f"Rule: {self.rule}")
        if self.fix:
            parts.append(f"Fix: {self.fix}")
        return ". ".join(part.rstrip(".") for part in parts) + ("." if len(parts) > 1 else "")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.__dict__.copy())


def _rebuild(kind: type[GradweaveError], state: dict[str, object]) -> GradweaveError:
    """Unpickle an error whose constructor takes keywords (workers send errors to each other)."""
    error = kind.__new__(kind)
    error.__dict__.update(state)
    Exception.__init__(error, error._message())
    return error


class ConfigError(GradweaveError, ValueError):
    """A value or a combination of values is not allowed."""


class SplitError(ConfigError):
    """A split strategy is malformed or does not fit the model."""


class GroupError(GradweaveError, ValueError):
    """A group is unknown, or the caller's rank is not in it."""


class MismatchError(GradweaveError, RuntimeError):
    """Ranks disagree: on the model, the plan, a shape or the number of steps."""


class CollectiveError(GradweaveError, RuntimeError):
    """A collective failed or did not finish in time: a dead, late or diverged peer."""


class StateError(GradweaveError, RuntimeError):
    """A call came in the wrong order or on an object that can no longer serve it."""


class PlanFileError(GradweaveError, ValueError):
    """A plan file cannot be read, or was made for another model or group."""


class TraceError(GradweaveError, ValueError):
    """A trace file cannot be read, or does not hold what was asked of it."""


class MissingDependencyError(GradweaveError, ImportError):
    """A feature needs a package that is not installed."""
