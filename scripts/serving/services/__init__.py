"""Services of Debian, and the work that their clients do."""

from . import databases, files, web, work
from .registry import ALL
