"""The one error that a user can cause."""


class AttnscopeError(Exception):
    """What a user can cause and mend.

    The message says what was found, what was expected and what to do, on one or two lines.
    """
