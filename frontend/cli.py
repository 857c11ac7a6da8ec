"""The rlvitals command: finds the subcommand, turns our own errors into one sentence and exit code 2."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import NoReturn

from frontend.commands import NAMES, commands
from frontend.terminal import say
from ingest.errors import RLVitalsError

CANNOT_RUN = 2
_INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are one sentence with the nearest name that would have been right."""

    def error(self, message: str) -> NoReturn:
        """Prints the sentence and leaves with exit code 2."""
        say(f"{self.prog}: {message.rstrip('.')}. `{self.prog} --help` lists what is possible.")
        sys.exit(CANNOT_RUN)

    def refuse(self, word: str) -> NoReturn:
        """Refuses a word that nobody knows; an option gets the nearest one there is."""
        name = word.split("=", 1)[0]
        if not name.startswith("-"):
            self.error(f"{name!r} is one argument too many")
        self.error(f"there is no option {name}{_nearest(name, self._option_string_actions)}")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed command line; leaves with exit code 2 if it cannot be understood."""
    parser = build_parser()
    first = arguments[0] if arguments else ""
    if first and not first.startswith("-") and first not in NAMES:
        parser.error(f"there is no command {first}{_nearest(first, NAMES)}")
    found, unknown = parser.parse_known_args(arguments)
    rest = getattr(found, "rest", None)
    if rest and not any(word.startswith("-") for word in unknown):
        # argparse gives a list of words to the first place where it fits, and leaves over what follows an option.
        setattr(found, rest, [*getattr(found, rest), *unknown])
    elif unknown:
        found.parser.refuse(unknown[0])
    return found


def build_parser() -> Parser:
    """The whole command line."""
    parser = Parser(
        prog="rlvitals", description="Watches reinforcement-learning post-training runs and says what goes wrong, since when and why."
    )
    parser.add_argument("--version", action="version", version=f"rlvitals {version('rlvitals')}")
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for module in commands():
        module.add_parser(subparsers)
    for name, subparser in subparsers.choices.items():
        subparser.allow_abbrev = False
        subparser.set_defaults(parser=subparser)
        if name not in _WITHOUT_HOME:
            subparser.add_argument("--home", metavar="DIR", help="folder with both stores (default: RLVITALS_HOME or ~/.rlvitals)")
    return parser


_WITHOUT_HOME = frozenset({"demo", "readers", "metrics", "audit", "budget"})


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code of contracts.md."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = parse(arguments)
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except RLVitalsError as error:
        say(f"rlvitals: {error}")
        return CANNOT_RUN
    except KeyboardInterrupt:
        say("rlvitals: stopped.")
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has seen enough; Python must not complain while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        say(f"rlvitals: {error.filename or 'The system'}: {error.strerror or error}.")
        return CANNOT_RUN
    except Exception:
        # Exit code 1 has a meaning (findings, rejects): a fault of ours must not look like one.
        traceback.print_exc()
        say("rlvitals: this is a fault of RLVitals, not of your files. Please report the lines above.")
        return CANNOT_RUN


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
