"""Descriptions, in one line, of exceptions that code of users raised: environments, networks and their modules."""

import signal
import traceback

MISBEHAVIOUR = (Exception, SystemExit, KeyboardInterrupt)
"""Exceptions that count as a failure of that code and do not end the process."""

_SHOWN = 300
_NOT_THEIRS = ("/gymnasium/", "/penstock/", "/numpy/", "<frozen ")
"""Parts of the file names of code that calls environments or imports them."""


def describe(error: BaseException) -> str:
    """Returns an exception's class and text in one line."""
    text, kind = shortened(str(error)), type(error).__name__
    return f"{kind}: {text}" if text else kind


def explain(error: BaseException) -> str:
    """Returns an exception's class and text, and the line of the user's code that raised it."""
    frames = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__))
    theirs = [frame for frame in frames if not any(part in frame[0] for part in _NOT_THEIRS)]
    place = f" ({theirs[-1][0]}, line {theirs[-1][1]})" if theirs else ""
    return f"{describe(error).rstrip('.')}{place}"


def one_line(text: str) -> str:
    """Returns a text without its line breaks and indentation."""
    return " ".join(text.split())


def shortened(text: str) -> str:
    """Returns at most 300 characters of a text in one line."""
    line = one_line(text)
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


def let_ctrl_c_pass(error: BaseException) -> None:
    """Re-raises a KeyboardInterrupt of the user. In a service, which handles SIGINT, it is an environment's."""
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise error
