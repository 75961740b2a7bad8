"""The one exception of the package."""

from __future__ import annotations


class FluxError(Exception):
    """An error: what is wrong, where, and a hint.

    Attributes:
        what: The fact.
        kind: `usage` if the request cannot be carried out as written, `failure`, or `cancelled`.
        field: The keyword to change, such as `steps`, if there is one.
        where: The file or option, if there is one.
        hint: The way out, if there is one.
    """

    def __init__(
        self,
        what: str,
        kind: str = "failure",
        field: str | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what, kind, field, where, hint)
        self.what = what
        self.kind = kind
        self.field = field
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        parts = [self.what]
        if self.where:
            parts.append(f"  in: {self.where}")
        if self.hint:
            parts.append(f"  hint: {self.hint}")
        return "\n".join(parts)


def usage(what: str, field: str | None = None, hint: str | None = None) -> FluxError:
    """Returns the error for a request that cannot be carried out as written."""
    return FluxError(what, "usage", field, field, hint)
