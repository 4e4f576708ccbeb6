# cuda-bindings has no types; as Any its names let the rest be checked strictly.
from typing import Any

def __getattr__(name: str) -> Any: ...
