"""Functions of a site on which spaCy isn't installed, or so it looks to whoever imports this."""

import sys
from typing import Any, cast

from headrace import function

cast("dict[str, Any]", sys.modules)["spacy"] = None  # as `importlib` has it for what isn't to be found


@function()
def there(input: int) -> int:
    """A function that needs nothing."""
    return input
