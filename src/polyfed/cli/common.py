"""What the commands share: options, errors as sentences, the result as a table or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyfed.core.errors import BadInput, Interrupted, PolyfedError, cut, visible

if TYPE_CHECKING:
    from polyfed.run.plan import Plan

SET = "Change any key: --set algorithm.lr=0.1; an empty value takes the key out."
AsJson = Annotated[bool, typer.Option("--json", help="End with one JSON object on the last line of stdout.")]
ALLOW_CODE = "Let the experiment name code of an installed package, too; code beside its file needs no leave."
AllowCode = Annotated[list[str] | None, typer.Option("--allow-code", metavar="PACKAGE", help=ALLOW_CODE)]
Assignments = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET)]


def with_progress(plan: Plan) -> Plan:
    """The plan with a progress bar, where somebody is looking; the rules of its settings are said now."""
    for note in plan.notes:
        print(note, file=sys.stderr)
    if not sys.stderr.isatty():
        return plan
    from dataclasses import replace

    from polyfed.run.display import Progress

    return replace(plan, callbacks=(*plan.callbacks, Progress()))


def show_result(summary: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))
        return
    from polyfed.run.display import show

    show(summary)


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Errors a person can mend are one line on stderr: exit code 2 for bad input, 1 for a run that stopped."""
    from_ctrl_c = 130
    try:
        yield
    except PolyfedError as error:
        print(f"polyfed: {visible(error)}", file=sys.stderr)
        sys.exit(from_ctrl_c if isinstance(error, Interrupted) else 2 if isinstance(error, BadInput) else 1)
    except BrokenPipeError:  # `polyfed list | head`: nobody reads on
        raise
    except OSError as error:  # a name that no file can have, a disk that fails
        print(f"polyfed: {cut(visible(error))}; 'polyfed doctor' looks at the disk and at rights.", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("polyfed: stopped; 'polyfed resume RUN' continues from the last checkpoint.", file=sys.stderr)
        sys.exit(from_ctrl_c)
