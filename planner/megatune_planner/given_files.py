"""TOML files in which people give figures that Megatune does not measure."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel
from pydantic import ValidationError

from megatune_kernels.errors import MegatuneError

T = TypeVar("T", bound=BaseModel)


def read_toml(path: Path, form: type[T]) -> T:
    """The file, checked.

    :raises MegatuneError: one line that names the file, when it cannot be read, is not TOML or not of that form.
    """
    try:
        return form.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise MegatuneError(f"cannot read {path}: {why}") from None
    except tomllib.TOMLDecodeError as error:
        raise MegatuneError(f"{path}: not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise MegatuneError(f"{path}: {where}: {first['msg']}") from None
