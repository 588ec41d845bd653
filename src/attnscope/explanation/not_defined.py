"""What is raised where an analysis cannot be."""

from attnscope.support.errors import AttnscopeError


class NotDefinedError(AttnscopeError):
    """An analysis that this model does not admit."""
