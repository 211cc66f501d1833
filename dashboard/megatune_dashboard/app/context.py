"""What every page is given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Concatenate
from typing import ParamSpec
from typing import TypeVar

import streamlit as st
from sqlalchemy.orm import Session

from megatune_dashboard.app.people import Person
from megatune_dashboard.app.source import Source
from megatune_db.location import Location
from megatune_kernels.errors import MegatuneError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """The database, and who looks at it."""

    source: Source
    person: Person
    pages: Mapping[str, Any] = field(default_factory=dict)
    """Streamlit's pages by ``PATH``; empty where one page is shown alone."""

    @property
    def location(self) -> Location:
        """Of the database; as text it has no password."""
        return self.source.location

    def read(self, query: Callable[Concatenate[Session, P], T], *arguments: P.args, **options: P.kwargs) -> T:
        """What a named query, or a planner's function that takes a session, gives for these hashable arguments.

        The answer is kept until somebody commits, and shared: leave it unchanged.

        :raises DatabaseError: when the database cannot be read.
        """
        return self.source.read(query, *arguments, **options)

    def read_at(
        self, version: Hashable, query: Callable[Concatenate[Session, P], T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """The same, kept until ``version`` changes: where a commit elsewhere leaves the answer as it is."""
        return self.source.read_at(version, query, *arguments, **options)

    def link(self, path: str, label: str, **filters: str) -> None:
        """A link to another page.

        :param path: the page's ``PATH``.
        :param filters: keys and values of the widgets there that are bound to the address.
        """
        if path in self.pages:
            st.page_link(self.pages[path], label=label, query_params=filters)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """A session for a review or an export, committed at the end of the block; keep it short.

        :raises MegatuneError: for somebody who may only look.
        :raises DatabaseError: when the file cannot be written.
        """
        if not self.person.reviews:
            raise MegatuneError(f"{self.person.name} may look and not decide: that takes the role reviewer")
        with self.source.writing() as session:
            yield session
