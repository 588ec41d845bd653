"""The address of a file or folder in an object store or on the web, which is never shown with its secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from attnscope._paths import is_path
from attnscope.errors import AttnscopeError

_FORM = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_COLLAPSED = re.compile(r"([a-z][a-z0-9+.-]+):/[^/]", re.IGNORECASE)  # what pathlib makes of it
_AS_QUERY, _AS_USER = re.compile(r"\?[^\s'\"]*=[^\s'\"]*"), re.compile(r"//[^/\s@]+@")
_LONGEST = 8192  # characters, as of one that carries a key; what is longer is a text
_WEB = ("http", "https")
_HIDDEN = "..."


def is_url(given: object) -> bool:
    """Whether a string is a URL: one word, ``scheme://`` and more.

    Examples
    --------
    >>> is_url("s3://bucket/a.txt"), is_url("See https://example.org."), is_url(Path("a.txt"))
    (True, False, False)
    """
    if not isinstance(given, str) or len(given) > _LONGEST or any(map(str.isspace, given)):
        return False
    return _FORM.match(given) is not None


def refuse_path_of_url(path: Path) -> None:
    """Refuse ``Path("s3://bucket/a.txt")``: a path keeps only one of the slashes.

    Raises
    ------
    AttnscopeError
        It is one, and no such file is here.

    Examples
    --------
    >>> refuse_path_of_url(Path("s3://bucket/a.txt"))
    Traceback (most recent call last):
    ...
    attnscope.errors.AttnscopeError: s3:/bucket/a.txt is a URL as a pathlib.Path, which ...
    """
    match = _COLLAPSED.match(str(path))
    if match and match[1].lower() in _schemes() and not is_path(path, "exists"):
        shown = Url(str(path).replace(":/", "://", 1))
        raise AttnscopeError(
            f"{str(shown).replace('://', ':/', 1)} is a URL as a pathlib.Path, which keeps one slash only: give the "
            "string itself"
        )


@dataclass(frozen=True)
class Url:
    """A file or folder that fsspec reads, named as paths are; as text it is without user, password and query.

    Its name may hold spaces, unlike that of a string that is taken for a URL.

    Parameters
    ----------
    address
        As it was given.

    Raises
    ------
    AttnscopeError
        Its scheme is none that fsspec knows.

    Examples
    --------
    >>> url = Url("https://me:key@example.org/a%20b.txt.gz?signature=secret")
    >>> str(url), url.name, url.suffix
    ('https://example.org/a%20b.txt.gz?...', 'a b.txt.gz', '.gz')
    >>> Url("s3://bucket/corpus/").child("a.txt")
    Url(s3://bucket/corpus/a.txt)
    """

    address: str = field(repr=False)

    def __post_init__(self) -> None:
        if _FORM.match(self.address) is None or self.scheme not in _schemes():
            raise AttnscopeError(
                f"{self}: a URL that nothing here reads; expected s3://, gs://, az://, https:// or another that "
                "fsspec knows"
            )

    def __repr__(self) -> str:
        return f"Url({self})"

    def __str__(self) -> str:
        """Without anything that may be secret."""
        scheme, divider, rest = self.address.partition("://")
        body, query = _cut(rest, web=scheme.lower() in _WEB)
        host, slash, path = body.partition("/")
        return f"{scheme}{divider}{host.rpartition('@')[2]}{slash}{path}{'?' + _HIDDEN if query else ''}"

    @property
    def scheme(self) -> str:
        """``s3``, ``https``, ..., in lower case."""
        return self.address.partition("://")[0].lower()

    @property
    def is_web(self) -> bool:
        """Whether it is a page of the web, where nothing is listed."""
        return self.scheme in _WEB

    @property
    def inner(self) -> str:
        """What stands behind ``scheme://``, without query and user."""
        body, _ = _cut(self.address.partition("://")[2], web=self.is_web)
        host, slash, path = body.partition("/")
        return f"{host.rpartition('@')[2]}{slash}{unquote(path) if self.is_web else path}"

    @property
    def name(self) -> str:
        """Its last part, without a query."""
        return PurePosixPath(self.inner).name

    @property
    def suffix(self) -> str:
        """As of a path."""
        return PurePosixPath(self.name).suffix

    @property
    def stem(self) -> str:
        """As of a path."""
        return PurePosixPath(self.name).stem

    def child(self, name: str) -> Url:
        """A file below, by its path in this folder."""
        body, _ = _cut(self.address, web=self.is_web)
        return Url(f"{body.rstrip('/')}/{name}{self.address[len(body) :]}") if name else self

    def place(self) -> tuple[Any, str]:
        """What reads it, of fsspec, and its name there.

        Raises
        ------
        AttnscopeError
            The package for its scheme is not installed.
        """
        from fsspec.core import url_to_fs

        try:
            return url_to_fs(self.address)
        except ImportError as error:
            raise AttnscopeError(f"{self}: {self.scheme}:// {self._lacking()}") from error

    def clean(self, text: str) -> str:
        """A message without the secrets of this address, however a library writes them."""
        body, query = _cut(self.address.partition("://")[2], web=self.is_web)
        user = body.partition("/")[0].rpartition("@")[0]
        parts = [user, *user.split(":"), query, *(part.partition("=")[2] for part in re.split("[&#]", query))]
        secrets = {form for part in parts for form in (part, unquote(part)) if len(form) > 1}
        text = text.replace(self.address, str(self))
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return _AS_QUERY.sub("?" + _HIDDEN, _AS_USER.sub("//", text))

    def _lacking(self) -> str:
        from fsspec.registry import known_implementations

        if self.scheme in ("s3", "s3a", *_WEB):
            return "needs a package that is not installed: pip install 'attnscope[remote]'"
        return f"cannot be read: {known_implementations.get(self.scheme, {}).get('err', 'a package lacks')}"


def _cut(rest: str, *, web: bool) -> tuple[str, str]:
    """What names the file, and the query behind it; elsewhere than on the web names may hold a question mark."""
    body, mark, query = rest.partition("?")
    if web or "=" in query:
        return body.partition("#")[0] if web else body, query
    return f"{body}{mark}{query}", ""


def _schemes() -> set[str]:
    from fsspec import available_protocols

    return {*available_protocols()}
