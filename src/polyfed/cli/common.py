"""What the commands share: options, errors as sentences, the result as a table or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyfed.core.errors import BadInput, Interrupted, PolyfedError, cut, visible

if TYPE_CHECKING:
    from polyfed.run.plan import Plan

SET = "Change any key: --set algorithm.lr=0.1; an empty value takes the key out."
AsJson = Annotated[bool, typer.Option("--json", help="End with one JSON object on the last line of stdout.")]
ALLOW_CODE = "Let the experiment name code of an installed package, too; code beside its file needs no leave."
JOBS = "Processes; default: one for each core, on a GPU one. Several can share a GPU."
AllowCode = Annotated[list[str] | None, typer.Option("--allow-code", metavar="PACKAGE", help=ALLOW_CODE)]
Assignments = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=SET)]


def with_progress(plan: Plan) -> Plan:
    """The plan with its progress on stderr, a bar or plain lines; the rules of its settings are said now."""
    for note in plan.notes:
        print(note, file=sys.stderr)
    from dataclasses import replace

    from polyfed.callbacks.printer import Printer, shown_progress
    from polyfed.run.display import Progress

    if any(isinstance(callback, Printer | Progress) for callback in plan.callbacks):  # the experiment's own
        return plan
    return replace(plan, callbacks=(*plan.callbacks, shown_progress(plan.rounds)))


def show_result(summary: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))
        return
    from polyfed.run.display import show

    show(summary)


def study_report(study: Path) -> tuple[str | None, str]:
    """The page of a study, or why there is none."""
    from polyfed.report.writing import write_report

    page = study / "report.html"
    try:
        write_report([study], page)
    except PolyfedError as error:
        return None, f"No report: {error}"
    except Exception as error:  # the runs are done: their table does not wait for a page
        return None, f"No report ({cut(f'{type(error).__name__}: {error}')}); 'polyfed report {study}' tries again."
    return str(page), ""


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
