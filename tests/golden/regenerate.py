"""Write the golden files anew: python tests/golden/regenerate.py, then read what git diff says before committing it.

They are what each exporter makes of the examples' measurements (tests/planner/export_examples.py), and what the planner
says of published figures. They change when a format changes, which needs a new schema version or a new exporter, or
when planning decides otherwise.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent
sys.path.insert(0, str(GOLDEN.parent / "planner"))

from export_examples import example_exports  # noqa: E402  (found only after the path is set)
from published_examples import published_answers  # noqa: E402

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = example_exports(Path(folder)) | {"published/answers.txt": published_answers()}
        for name, text in found.items():
            path = GOLDEN / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(GOLDEN.parents[1]))
