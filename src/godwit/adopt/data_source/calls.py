"""Calls of a user's data source, with its options, and with errors that name it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource

from godwit.model.errors import GodwitError, SinkError, SourceError
from godwit.model.secrets import Secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class DataSourceCalls:
    """A data source's class and options; picklable."""

    def __init__(
        self,
        kind: type[DataSource],
        options: Mapping[str, str],
        error: type[SourceError | SinkError],
    ) -> None:
        self.options = {str(name): str(value) for name, value in options.items()}
        self._kind, self._error = kind, error
        self._secrets = Secrets.of_values(self.options)

    @property
    def name(self) -> str:
        """Name of the class."""
        return self._kind.__name__

    def open(self) -> DataSource:
        """Return a new data source with the options."""
        with self.errors("cannot be created with these options"):
            return self._kind(CaseInsensitiveDict(self.options))

    @property
    def shown_options(self) -> str:
        """Options as text, without secrets, in the order of their names."""
        named = sorted(self.options.items())
        return self._secrets.hide(", ".join(f"{name}={value}" for name, value in named))

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Context that adds the data source, and `what` failed, to errors of its methods."""
        try:
            yield
        except GodwitError:
            raise
        except PySparkNotImplementedError as error:
            raise self._error(
                f"The data source {self.name} {what}: it lacks a method ({error}).",
                remedy="Use a data source that has it, or implement the method.",
            ) from error
        except Exception as error:
            text = self._secrets.hide(f"{type(error).__name__}: {error}")
            raise self._error(
                f"The data source {self.name} {what}: {text}.",
                remedy="Check its options, and the data or the service behind it.",
            ) from error
