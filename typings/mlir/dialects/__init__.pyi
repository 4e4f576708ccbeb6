# The builders that the bindings generate have no types; as Any they let the rest be checked strictly.
from typing import Any

def __getattr__(name: str) -> Any: ...
