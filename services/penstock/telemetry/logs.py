"""Structured logs on stderr, with one event per state change: text in a terminal, JSON lines elsewhere."""

import logging
import sys
from collections.abc import Mapping

import structlog

Logger = structlog.typing.FilteringBoundLogger


def configure(common: Mapping[str, str | int], *, level: str, log_format: str) -> Logger:
    """Configures the process's logging and returns its logger.

    Every event carries the fields `common`, as they are at that time; its own fields of the same names take precedence.
    """

    def named(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**common, **event}

    text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if text else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            named,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logger: Logger = structlog.get_logger()
    return logger


def note(event: str, **values: str) -> None:
    """Logs an event of code below the services. Does nothing in a process without configured logging."""
    if structlog.is_configured():
        structlog.get_logger().info(event, **values)


def warn(event: str, **values: str) -> None:
    """Logs an event that needs the user's attention, as `note`."""
    if structlog.is_configured():
        structlog.get_logger().warning(event, **values)


def detail(event: str, **values: int) -> None:
    """Logs an event that only a search for a fault needs, at level debug. Does nothing as `note`."""
    if structlog.is_configured():
        structlog.get_logger().debug(event, **values)
