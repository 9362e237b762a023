"""What fit takes as a model: something that becomes a Model once it has seen the structure of the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardmc.model.model import Model


class Recipe(ABC):
    """A model whose parameters may only be known when there are rows to look at."""

    @abstractmethod
    def bind(self, rows: Any) -> Model:
        """The model for rows of this structure (a small sample is enough): the same object for the same structure."""

    @abstractmethod
    def columns_used(self, rows: Mapping[str, Any]) -> list[str]:
        """The columns of a table that the model reads, given a small sample of it; in the table's order."""
