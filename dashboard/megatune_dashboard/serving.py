"""``megatune dashboard``: the pages in a browser, served from this machine."""

from __future__ import annotations

import os
import tomllib
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from megatune_db.location import ENVIRONMENT
from megatune_db.location import Location
from megatune_db.location import locate
from megatune_kernels.errors import MegatuneError
from megatune_planner.command_words import DEFAULT_DATABASE

LOOPBACK = "127.0.0.1"
SIGN_IN_FIELDS = ("redirect_uri", "cookie_secret", "client_id", "client_secret", "server_metadata_url")
"""Of the section ``[auth]`` that every provider needs; Streamlit's documentation says what each of them is."""


def dashboard(
    db: Annotated[
        Location,
        typer.Option(
            "--db",
            envvar=ENVIRONMENT,
            parser=locate,
            metavar="PATH|URL",
            help="The database, a file or postgresql://USER@HOST/DATABASE; its tables need not exist yet.",
        ),
    ] = DEFAULT_DATABASE,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8501,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's own need --sign-in.")
    ] = LOOPBACK,
    sign_in: Annotated[
        Path | None,
        typer.Option(
            "--sign-in",
            dir_okay=False,
            help=r"TOML file with \[auth], an OpenID Connect provider as Streamlit configures it, and \[roles] with "
            "lists of addresses: viewers, reviewers. Without it whoever opens the page is the local user and may do "
            "all.",
        ),
    ] = None,
) -> None:
    """Show campaigns, measurements and plans in a browser, and decide on plans there. Ctrl-C ends it.

    The database is read and never locked: a campaign goes on beside it.
    """
    if find_spec("streamlit") is None or find_spec("plotly") is None:
        raise MegatuneError("the dashboard needs Streamlit and Plotly: pip install 'megatune[dashboard]'")
    if sign_in is not None:
        check_sign_in(sign_in)
    elif not _is_loopback(host):
        raise MegatuneError(
            f"--host {host} lets others open the page, and nobody would have to sign in: give --sign-in, or listen on "
            f"{LOOPBACK}"
        )
    serve(db, host=host, port=port, sign_in=sign_in)


def check_sign_in(path: Path) -> None:
    """:raises MegatuneError: naming what the sign-in file lacks; no value of it is ever told."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise MegatuneError(f"cannot read the sign-in file {path}: {getattr(error, 'strerror', 'not UTF-8')}") from None
    except tomllib.TOMLDecodeError:
        raise MegatuneError(f"the sign-in file {path} is not TOML") from None
    auth, roles = found.get("auth"), found.get("roles")
    if not isinstance(auth, dict) or not isinstance(roles, dict):
        raise MegatuneError(f"the sign-in file {path} needs the sections [auth] and [roles]")
    providers = [name for name, value in auth.items() if isinstance(value, dict)]
    for name in SIGN_IN_FIELDS:
        places = [auth] if name in SIGN_IN_FIELDS[:2] else [auth, *(auth[provider] for provider in providers)]
        if not any(place.get(name) for place in places):
            raise MegatuneError(f"the sign-in file {path} lacks {name} in [auth]")
    if find_spec("authlib") is None or find_spec("httpx") is None:
        raise MegatuneError("signing in needs Authlib and httpx: pip install 'megatune[dashboard]'")
    for name, value in roles.items():
        if name not in ("reviewers", "viewers"):
            raise MegatuneError(f"the sign-in file {path} has {name!r} in [roles]; allowed: reviewers, viewers")
        if not isinstance(value, list) or not all(isinstance(address, str) for address in value):
            raise MegatuneError(f"{name} in [roles] of {path} has to be a list of addresses")


def serve(db: Location, *, host: str, port: int, sign_in: Path | None) -> None:
    """Serve the pages until the process is stopped."""
    from streamlit.web import bootstrap

    from megatune_dashboard.app import frame
    from megatune_dashboard.app.warm import warm

    os.environ.update(db.environment())
    warm(frame.source(os.environ[ENVIRONMENT]))
    os.environ.pop(frame.SIGN_IN, None)
    if sign_in is not None:
        os.environ[frame.SIGN_IN] = str(sign_in)
    options = {
        "server.address": host,
        "server.port": port,
        "server.headless": True,
        "server.fileWatcherType": "none",
        "server.showEmailPrompt": False,
        "browser.gatherUsageStats": False,
        "client.showErrorDetails": "none",
        "client.toolbarMode": "minimal",
        "theme.light.primaryColor": "#2563eb",
        "theme.dark.primaryColor": "#60a5fa",
        "secrets.files": [] if sign_in is None else [str(sign_in)],
    }
    # Streamlit takes options from its command line under these names.
    flags = {name.replace(".", "_"): value for name, value in options.items()}
    bootstrap.load_config_options(flags)
    bootstrap.run(str(Path(__file__).with_name("streamlit_script.py")), False, [], flags)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
