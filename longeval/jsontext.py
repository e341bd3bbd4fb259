"""One way to read JSON that somebody else wrote: whatever is wrong with it is one line that names the place."""

from __future__ import annotations

import json
from typing import Any

from longeval.errors import UserError, one_line


def parse_json(content: bytes, where: str, remedy: str | None = None) -> Any:
    """The value of UTF-8 JSON text. UserError naming `where`, and `remedy` if given, for anything that is none."""
    try:
        return json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 (byte {error.start}); {remedy or 'convert the file to UTF-8'}") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        remedy = remedy or "mend the file or fetch it again"
        raise UserError(f"{where}: not valid JSON ({error.msg}, {place}); {remedy}") from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, nesting without end
        raise UserError(f"{where}: not usable JSON ({one_line(error)}); {remedy or 'mend the file'}") from error
