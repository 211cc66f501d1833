"""One module a page, in the order of the navigation."""

from __future__ import annotations

from typing import Protocol
from typing import cast

from megatune_dashboard.app.context import Context
from megatune_dashboard.app.pages import campaigns
from megatune_dashboard.app.pages import explore
from megatune_dashboard.app.pages import exports
from megatune_dashboard.app.pages import health
from megatune_dashboard.app.pages import plan_review
from megatune_dashboard.app.pages import search


class PageModule(Protocol):
    """What a module here says of its page."""

    TITLE: str
    """In the navigation."""
    ICON: str
    """Name of a Material symbol, e.g. ``:material/search:``."""
    PATH: str
    """In the address, and what ``st.page_link`` is given."""

    def page(self, context: Context) -> None:
        """Show it."""


PAGES = tuple(cast(PageModule, module) for module in (campaigns, explore, search, plan_review, exports, health))
