"""Who looks at the pages, and what they may do."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any


class Role(StrEnum):
    """What somebody may do."""

    VIEWER = "viewer"
    REVIEWER = "reviewer"
    """Also stop and resume campaigns, decide on plans and export them."""


@dataclass(frozen=True)
class Person:
    """Somebody with a role."""

    name: str
    """An address after signing in, else the name of the account that the dashboard runs under."""
    role: Role
    local: bool
    """Whether nobody had to sign in."""

    @property
    def reviews(self) -> bool:
        return self.role is Role.REVIEWER


@dataclass(frozen=True)
class Roles:
    """Who has which role: addresses, or patterns such as ``*@example.org``. Reviewers view too; others see nothing."""

    reviewers: tuple[str, ...] = ()
    viewers: tuple[str, ...] = ()

    @staticmethod
    def of(section: Mapping[str, Any]) -> Roles:
        """From the section ``[roles]`` of the sign-in file."""
        return Roles(_patterns(section.get("reviewers", ())), _patterns(section.get("viewers", ())))

    def role(self, address: str) -> Role | None:
        """The most that any pattern gives to the address; None for somebody that no pattern names."""
        for role, patterns in ((Role.REVIEWER, self.reviewers), (Role.VIEWER, self.viewers)):
            if any(fnmatchcase(address.lower(), pattern.lower()) for pattern in patterns):
                return role
        return None


def local_person() -> Person:
    """Whoever runs the dashboard, on a page that only this machine can open."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = "local user"
    return Person(name, Role.REVIEWER, local=True)


def signed_in(user: Mapping[str, Any], roles: Roles) -> Person | None:
    """The person that an identity provider vouches for; None where the configuration gives no role.

    :param user: the claims of the provider. An address that it says is not verified counts for nothing.
    """
    address = user.get("email")
    if not isinstance(address, str) or not address or user.get("email_verified") is False:
        return None
    role = roles.role(address)
    return None if role is None else Person(address, role, local=False)


def _patterns(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(map(str, value))
