"""What surrounds every page: the navigation, who is signed in, and what happens when a page fails."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from collections.abc import Mapping
from functools import cache
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from megatune_dashboard.app.context import Context
from megatune_dashboard.app.pages import PAGES
from megatune_dashboard.app.people import Person
from megatune_dashboard.app.people import Roles
from megatune_dashboard.app.people import local_person
from megatune_dashboard.app.people import signed_in
from megatune_dashboard.app.source import Source
from megatune_dashboard.app.text import plain
from megatune_dashboard.app.welcome import welcome
from megatune_db.errors import DatabaseError
from megatune_db.location import ENVIRONMENT
from megatune_kernels.errors import MegatuneError

DATABASE = ENVIRONMENT
"""Environment variable with the database's path or URL."""
DEFAULT_DATABASE = "megatune.db"
ICON = str(Path(__file__).with_name("icon.svg"))
SIGN_IN = "MEGATUNE_SIGN_IN"
"""Environment variable that is set where the dashboard was started with a sign-in file."""

log = logging.getLogger("megatune.dashboard")


def run() -> None:
    """The whole application: one run of the script."""
    st.set_page_config(page_title="Megatune", page_icon=ICON, layout="wide")
    person = _person()
    if person is None:
        # A navigation of nothing else: otherwise Streamlit makes one of the folder ``pages``.
        st.navigation([st.Page(_sign_in, title="Sign in")], position="hidden").run()
        return
    pages: dict[str, Any] = {}
    # The pages name one another by way of the context, which is there before they are.
    context = _context(person, pages)
    for module in PAGES:
        pages[module.PATH] = st.Page(
            partial(guarded, module.page, context),
            title=module.TITLE,
            icon=module.ICON,
            url_path=module.PATH,
            default=module is PAGES[0],
        )
    chosen = st.navigation(list(pages.values()))
    _sidebar(context)
    chosen.run()


def show(path: str, person: Person | None = None) -> None:
    """One page without the navigation, for tests."""
    module = next(module for module in PAGES if path == module.PATH)
    guarded(module.page, _context(person or local_person()))


def guarded(page: Callable[[Context], None], context: Context) -> None:
    """Show a page, or how to begin; what keeps it from being shown is one line on it, and never a traceback."""
    try:
        if context.source.database() is None:
            welcome(context)
        else:
            page(context)
    except (MegatuneError, DatabaseError) as error:
        st.error(plain(error))
    except Exception as error:
        log.exception("a page failed")
        st.error(
            f"A fault of the program ({plain(type(error).__name__)}): what the dashboard was started in says where. "
            "Reload the page, or choose another."
        )


def _context(person: Person, pages: Mapping[str, Any] | None = None) -> Context:
    return Context(source(os.environ.get(DATABASE, DEFAULT_DATABASE)), person, {} if pages is None else pages)


@cache
def source(where: str) -> Source:
    """The database at a path or URL, the same for all sessions of this process."""
    return Source(where)


def _person() -> Person | None:
    """Who looks; None for somebody who has to sign in first, or may not look."""
    if not os.environ.get(SIGN_IN):
        return local_person()
    if not st.user.is_logged_in:
        return None
    return signed_in(st.user.to_dict(), Roles.of(st.secrets.get("roles", {})))


def _sign_in() -> None:
    st.title("Megatune", anchor=False)
    if st.user.is_logged_in:
        st.error("You are signed in, but have no role here: ask who runs this dashboard to be a viewer or reviewer.")
        st.button("Sign out", on_click=st.logout)
    else:
        st.write("Sign in to see campaigns, plans and exports.")
        st.button("Sign in", on_click=st.login, type="primary")


def _sidebar(context: Context) -> None:
    with st.sidebar:
        st.caption(f"Database: {plain(context.location.name)}", help=plain(context.location))
        if context.person.local:
            st.caption(f"Local user {plain(context.person.name)}: nobody has to sign in.")
        else:
            st.caption(f"{plain(context.person.name)}, {context.person.role}")
            st.button("Sign out", on_click=st.logout)
