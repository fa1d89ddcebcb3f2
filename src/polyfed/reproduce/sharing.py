"""What cells of one call have in common is computed once, by whichever process comes first."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from polyfed.run.directory import write

# of the first process of a call; those that it forks have it, too
MEMO = tempfile.TemporaryDirectory(prefix="polyfed-shared-", ignore_cleanup_errors=True)


def once(what: Any, make: Callable[[Path], Any]) -> Any:
    """What was computed before in this call, by any of its processes, or is now: who asks meanwhile waits.

    Args:
        what: whose it is, and all that it depends on; as JSON.
        make: computes it, as JSON; gets an empty folder for files, which stay as long as the call lasts.
    """
    folder = Path(MEMO.name) / hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:20]
    path = folder / "found.json"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        if not path.is_file():
            write(path, json.dumps(make(Path(tempfile.mkdtemp(dir=folder)))).encode())
    return json.loads(path.read_text(encoding="utf-8"))
