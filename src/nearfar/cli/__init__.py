"""The command line: `nearfar …`, `python -m nearfar …`.

A command is a file here with two functions, `add` (its arguments) and `run` (from parsed arguments to an exit
code), and its name in `COMMANDS`. Heavy imports are inside `run`: `--help` and `doctor` are fast and work on
a broken install. Results go to standard output, progress to standard error.
"""

import argparse
import errno
import io
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn, TextIO

from nearfar import __version__
from nearfar.cli.codes import BAD_INPUT, DONE, RESUMABLE
from nearfar.errors import Stopped, UserError, naming_flags, not_one_of
from nearfar.system.extras import missing_extra
from nearfar.system.machine import set_passive_wait
from nearfar.system.signals import end_on_signals

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
    "search",
    "index",
    "curate",
    "report",
    "export",
    "mi",
    "study",
    "recipes",
    "bench",
    "doctor",
)
MAX_MESSAGE = 2000  # characters


class _Help(argparse.HelpFormatter):
    """Wraps paragraphs. A text of several lines is laid out already and stays as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text.rstrip() if "\n" in text else super()._fill_text(text, width, indent)


class _Parser(argparse.ArgumentParser):
    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **{"formatter_class": _Help, **keywords})

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise not_one_of(
                "/".join(action.option_strings) or str(action.metavar or action.dest), value, action.choices
            )

    def _print_message(self, message: str, file: Any = None) -> None:
        print(message, end="", file=file or sys.stderr, flush=True)  # argparse's own ignores write errors


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    # a stream closed by the shell (`>&-`) is replaced, so that no file we open gets its descriptor
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # file names and `–` print on any terminal
    set_passive_wait()
    with naming_flags():
        if not _is_distributed():
            return _main(arguments)
        from nearfar.distributed.strategy import leave

        try:
            return _main(arguments)
        finally:
            leave()


def _nowhere() -> TextIO:
    return open(os.devnull, "w")


def _is_distributed() -> bool:
    """Returns whether torchrun (or the same variables) started several processes. Does not import torch."""
    return os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1")


def _run(parsed: argparse.Namespace) -> int:
    """Runs the command on all ranks if it supports that, else on rank 0 only."""
    if not _is_distributed():
        return parsed.command(parsed)
    from nearfar.distributed.strategy import join, launched

    if parsed.several:
        join()
    elif launched()[0] > 0:
        return DONE
    return parsed.command(parsed)


def _main(arguments: Sequence[str] | None) -> int:
    parsed: argparse.Namespace | None = None
    try:
        with end_on_signals():
            parsed = _parsed(arguments)
            code = _run(parsed)
            sys.stdout.flush()  # write errors surface here, not at interpreter exit
            return code
    except UserError as problem:
        return _say(str(problem), BAD_INPUT)
    except Stopped as stopped:
        return _say(str(stopped), RESUMABLE)
    except KeyboardInterrupt as interrupt:
        saves = parsed is not None and "out" in parsed
        message = "interrupted; the same command resumes from what was saved" if saves else "interrupted"
        return _say(str(interrupt) or message, RESUMABLE)
    except BrokenPipeError:  # the reader closed the pipe, as `| head` does
        _discard(sys.stdout)
        return DONE
    except ModuleNotFoundError as problem:
        sentence = missing_extra(problem)
        if sentence is None:
            raise
        return _say(str(sentence), BAD_INPUT)
    except OSError as problem:
        if problem.errno is None:  # not of the system
            raise
        file = problem.filename or "a file, or standard output,"  # the error does not name the file
        # ENOENT: the folder itself may be gone, so nothing is promised
        promise = "" if problem.errno == errno.ENOENT else "; what was saved is kept"
        _flush(sys.stdout)
        return _say(f"{file} cannot be used: {problem.strerror}{promise}", BAD_INPUT)
    except (MemoryError, RuntimeError) as problem:
        failure = _communication_failure(problem) if _is_distributed() else None
        if failure is not None:
            return _say(failure.message, RESUMABLE if failure.resumable else BAD_INPUT)
        if not isinstance(problem, MemoryError) and not _out_of_memory(problem):
            raise
        return _say("memory ran out; lower batch_size, image_size or negatives.size, or set chunk", BAD_INPUT)


def _flush(stream: TextIO) -> None:
    """Flushes a stream, and discards its content if that fails."""
    try:
        stream.flush()
    except OSError:
        _discard(stream)


def _discard(stream: TextIO) -> None:
    """Redirects a stream to /dev/null. Otherwise Python retries at exit and changes the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    stream.flush()


def _out_of_memory(problem: RuntimeError) -> bool:
    """Recognises torch's out-of-memory errors: by class on GPUs, by message on CPUs."""
    return type(problem).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(problem)


def _communication_failure(problem: Exception) -> Any:
    from nearfar.distributed.failures import communication_failure

    return communication_failure(problem)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses arguments. Settings may come before or after options, which argparse alone does not support."""
    parser = _parser()
    parsed, rest = parser.parse_known_args(arguments)
    settings = "words" in parsed
    unexpected = [place for place, word in enumerate(rest) if word.startswith("-") or not settings]
    if unexpected:
        word, *following = rest[unexpected[0] :]
        raise UserError(
            f"{word} is not an option or argument of this command{_hint(word, following, parsed)}"
        )
    if rest:
        parsed.words += rest
    return parsed


def _hint(word: str, following: Sequence[str], parsed: argparse.Namespace) -> str:
    """Returns what was probably meant: `epochs=10` for `--epochs 10`, `--data test/` for `test/`."""
    if not word.startswith("-"):
        return f"; did you mean --data {shlex.quote(word)}?" if "data" in parsed else ""
    key, equals, value = word.lstrip("-").partition("=")
    if "words" not in parsed or not word.startswith("--") or not key:
        return ""
    if not equals:
        is_value = bool(following) and not following[0].startswith("-") and "=" not in following[0]
        value = following[0] if is_value else "VALUE"
    return f"; settings are written without dashes: {key.replace('-', '_')}={value}"


def _say(sentence: str, code: int) -> int:
    if len(sentence) > MAX_MESSAGE:  # it quotes a long value; the end says what is allowed
        half = MAX_MESSAGE // 2
        sentence = f"{sentence[:half]} … {sentence[-half:]}"
    if _is_distributed():
        from nearfar.distributed.strategy import report_once

        first_code = report_once(code)
        if first_code is not None:
            return first_code
    with suppress(OSError):  # stderr is gone; the exit code remains
        print(f"nearfar: {sentence}", file=sys.stderr)
    _flush(sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="nearfar",
        description="Learns representations from unlabelled data, evaluates them, and estimates mutual information.",
        epilog="Start with `nearfar demo`, or `nearfar pretrain simclr PHOTOS/ --out runs/photos`. `nearfar COMMAND "
        "--help` shows the arguments of a command. Exit codes: 0 done, 2 bad input, 75 stopped but resumable (run "
        "the same command again).",
    )
    parser.add_argument("--version", action="version", version=f"nearfar {__version__}")
    parser.set_defaults(several=False, command=lambda args: print(parser.format_help(), end="") or DONE)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=_Parser)
    for name in COMMANDS:
        import_module(f"nearfar.cli.{name}").add(commands)
    return parser
