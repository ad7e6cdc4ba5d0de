"""The command line: `nearfar …`, `python -m nearfar …`.

A command is a file here with two functions, `add` (its arguments) and `run` (from parsed arguments to an exit code), and its name
in `COMMANDS`. What it needs it imports inside `run`: `--help` and `doctor` answer at once, and on a broken install too.
Results go to standard output, progress to standard error.
"""

import argparse
import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn, TextIO

from nearfar import __version__
from nearfar.cli.codes import BAD_INPUT, DONE, RESUMABLE
from nearfar.errors import Stopped, UserError, not_one_of
from nearfar.system.extras import missing_extra
from nearfar.system.machine import wait_patiently
from nearfar.system.signals import ends_by_signal

COMMANDS = (
    "demo",
    "pack",
    "pretrain",
    "train",
    "distill",
    "evaluate",
    "sweep",
    "semi",
    "detect",
    "embed",
    "report",
    "export",
    "mi",
    "study",
    "recipes",
    "bench",
    "doctor",
)
LONGEST_SENTENCE = 2000  # characters


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise not_one_of(
                "/".join(action.option_strings) or str(action.metavar or action.dest), value, action.choices
            )

    def _print_message(self, message: str, file: Any = None) -> None:
        print(message, end="", file=file or sys.stderr, flush=True)  # argparse's own passes over what fails


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    # where the shell closed one (`>&-`) nothing is said, and no file we open takes its number
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files and `–` are told on any terminal
    wait_patiently()
    if not _launched_with_others():
        return _main(arguments)
    from nearfar.distributed.ranks import leave

    try:
        return _main(arguments)
    finally:
        leave()


def _nowhere() -> TextIO:
    return open(os.devnull, "w")


def _launched_with_others() -> bool:
    """Whether torchrun, or what sets the same variables, started this process as one of several; asked without torch."""
    return os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1")


def _run(parsed: argparse.Namespace) -> int:
    """The command, by all ranks together if it can be shared, else by the first."""
    if not _launched_with_others():
        return parsed.command(parsed)
    from nearfar.distributed.ranks import join, launched

    if getattr(parsed, "several", False):
        join()
    elif launched()[0] > 0:
        return DONE
    return parsed.command(parsed)


def _main(arguments: Sequence[str] | None) -> int:
    try:
        with ends_by_signal():
            code = _run(_parsed(arguments))
            sys.stdout.flush()  # what cannot be written is said here, and not by Python on its way out
            return code
    except UserError as problem:
        return _say(str(problem), BAD_INPUT)
    except Stopped as stopped:
        return _say(str(stopped), RESUMABLE)
    except KeyboardInterrupt as asked:
        interrupted = "interrupted; what was saved is kept, and the same command resumes from it"
        return _say(str(asked) or interrupted, RESUMABLE)
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        _give_up(sys.stdout)
        return DONE
    except ModuleNotFoundError as problem:
        sentence = missing_extra(problem)
        if sentence is None:
            raise
        return _say(str(sentence), BAD_INPUT)
    except OSError as problem:
        if problem.filename is None and problem.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        where = problem.filename or "a file, or standard output,"  # Python does not say which
        # what is no longer there is not kept either: somebody may have removed the whole folder
        kept = "" if problem.errno == errno.ENOENT else "; what was saved is kept"
        _flushed(sys.stdout)
        return _say(f"{where} cannot be used: {problem.strerror}{kept}", BAD_INPUT)
    except (MemoryError, RuntimeError) as problem:
        if _launched_with_others() and _lost(problem):
            return _say(
                "another process of this run ended; the same command resumes from what was saved", RESUMABLE
            )
        if not isinstance(problem, MemoryError) and not _out_of_memory(problem):
            raise
        return _say("memory ran out; lower batch_size, image_size or negatives.size, or set chunk", BAD_INPUT)


def _flushed(stream: TextIO) -> None:
    """Nothing is left to write that cannot be written."""
    try:
        stream.flush()
    except OSError:
        _give_up(stream)


def _give_up(stream: TextIO) -> None:
    """What it still holds goes nowhere: else Python tries once more when it ends, and ends with a code of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    stream.flush()


def _out_of_memory(problem: RuntimeError) -> bool:
    """torch says so by a class of its own on GPUs, and by its text alone on CPUs."""
    return type(problem).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(problem)


def _lost(problem: Exception) -> bool:
    """Whether an exchange with the other ranks failed: torch says so by its class, gloo and NCCL in words of their own."""
    said = str(problem).lower()
    return any(kind.__name__ == "DistError" for kind in type(problem).__mro__) or any(
        word in said for word in ("gloo", "nccl", "connection closed", "connection reset")
    )


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parsed arguments; settings may stand before or after the options, which argparse alone cannot take."""
    parser = _parser()
    parsed, rest = parser.parse_known_args(arguments)
    settings = hasattr(parsed, "words")
    strange = [place for place, word in enumerate(rest) if word.startswith("-") or not settings]
    if strange:
        word, *after = rest[strange[0] :]
        raise UserError(
            f"{word} is not an option or argument of this command{_as_setting(word, after, settings)}"
        )
    if rest:
        parsed.words += rest
    return parsed


def _as_setting(word: str, after: Sequence[str], settings: bool) -> str:
    """`--epochs 10` and `--epochs=10` are how other tools write what is here `epochs=10`."""
    key, equals, value = word.lstrip("-").partition("=")
    if not settings or not word.startswith("--") or not key:
        return ""
    if not equals:
        value = after[0] if after and not after[0].startswith("-") and "=" not in after[0] else "VALUE"
    return f"; settings are written without dashes: {key.replace('-', '_')}={value}"


def _say(sentence: str, code: int) -> int:
    if len(sentence) > LONGEST_SENTENCE:  # it quotes something long; what is allowed stands at its end
        half = LONGEST_SENTENCE // 2
        sentence = f"{sentence[:half]} … {sentence[-half:]}"
    if _launched_with_others():
        from nearfar.distributed.ranks import spoken

        already = spoken(code)
        if already is not None:
            return already
    with suppress(OSError):  # where nobody can be told, the code still says it
        print(f"nearfar: {sentence}", file=sys.stderr)
    _flushed(sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="nearfar",
        description="Learns representations from unlabelled data, evaluates them, and estimates mutual information.",
        epilog="nearfar COMMAND --help shows the arguments of one. "
        "Exit codes: 0 done, 2 bad input, 75 stopped but resumable (run the same command again).",
    )
    parser.add_argument("--version", action="version", version=f"nearfar {__version__}")
    parser.set_defaults(command=lambda given: print(parser.format_help(), end="") or DONE)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=_Parser)
    for name in COMMANDS:
        import_module(f"nearfar.cli.{name}").add(commands)
    return parser
