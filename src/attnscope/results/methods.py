"""A paragraph on methods for a paper, from a run: quantities, nulls, corrections, settings, references as BibTeX."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xarray as xr

from attnscope.measure.quantities import STATISTICS
from attnscope.report import schema
from attnscope.report.language import SENTENCES
from attnscope.report.render import as_latex, latex_text, legend_of
from attnscope.report.signature import Signature
from attnscope.results.describe import settings_of
from attnscope.results.open import known_run, read_run
from attnscope.results.reports import report_of
from attnscope.store.files import local_folder
from attnscope.support.checked import checked

_NAMED = 2  # authors that a citation names


@dataclass(frozen=True)
class Methods:
    """The methods of a run, for a paper."""

    sentences: list[str]  #: what was measured, how it is defined and tested, and with which settings and versions
    bibtex: str  #: the papers that the sentences cite, and attnscope
    tables: str  #: the tables of the terminal, as LaTeX

    @property
    def latex(self) -> str:
        """The paragraph as LaTeX, with citations of natbib."""
        text = latex_text(" ".join(self.sentences))
        for key, cited in _citations(text, self.bibtex).items():
            text = text.replace(cited, rf"\{'citet' if ')' in cited else 'citealp'}{{{key}}}")
        return f"% In the preamble: \\usepackage{{natbib}}\n{text}\n"


@checked
def methods(path: str | Path) -> Methods:
    """Describe how the numbers of a finished run were measured, as a paragraph for a paper.

    Parameters
    ----------
    path
        Folder of the run.

    Returns
    -------
    attnscope.results.methods.Methods
        ``sentences`` (and ``latex``): model and texts, the definitions of the columns of its tables, null and test with
        the correction for many tests, settings, seed and versions. ``bibtex``: what the sentences cite.

    Raises
    ------
    AttnscopeError
        If the folder contains no finished run.

    Examples
    --------
    >>> import tempfile
    >>> import attnscope
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = attnscope.roles(limit=2, window=32, controls="none", out=Path(folder) / "run")
    ...     described = methods(Path(folder) / "run")
    >>> "@inproceedings{clark2019," in described.bibtex, "seed 0" in " ".join(described.sentences)
    (True, True)
    """
    run = known_run(local_folder(path))
    result = read_run(run)
    report = report_of(run.command, result)
    signature = Signature.of(report.signature)
    tested = [table for table in report.tables if table.corrected and table.tested(table.shown("table", "page"))]
    sentences = [
        f"Measured by attnscope {run.command}: {report.model}, {report.read}.",
        *SENTENCES.split(report.method),
        *_statistics(result),
        *dict.fromkeys(f"Significance is corrected {table.corrected}." for table in tested),
        *_definitions(report),
        *(f"{title}: {', '.join(values)}." for title, values in _settings(signature)),
        f"Signature: {signature.format()}.",
    ]
    entries = (Path(schema.__file__).parent / "references.bib").read_text(encoding="utf-8")
    cited = _citations(" ".join(sentences), entries)
    chosen = [entry for entry in entries.split("\n\n") if _key(entry) in cited]
    return Methods(sentences, "\n\n".join([*(entry.strip() for entry in chosen), signature.bibtex]), as_latex(report))


def _definitions(report: schema.Report) -> list[str]:
    """The meaning of every column that a terminal shows."""
    quantities = [one for table in report.tables if table.terminal for one in table.shown("table")]
    defined = [f"{names}: {meaning}" for names, meaning in legend_of(quantities)]
    return [f"Columns of the tables are: {'; '.join(defined)}."] if defined else []


def _statistics(result: xr.Dataset | xr.DataTree) -> list[str]:
    names = result.coords["statistic"].values.tolist() if "statistic" in result.coords else list(result.data_vars)
    words = {name: STATISTICS[name].words for name in map(str, names) if name in STATISTICS}
    defined = [f"{name.replace('_', ' ')}: {of_name.long_name}" for name, of_name in words.items()]
    return [f"Statistics of each head are: {'; '.join(defined)}."] if defined else []


def _settings(signature: Signature) -> Iterator[tuple[str, list[str]]]:
    lines = settings_of(signature)
    for title, prefix in (("Settings", "setting "), ("Versions", "version of ")):
        stated = [(name, value) for name, value in lines if name.startswith(prefix) and value not in {"", "not set"}]
        yield title, [f"{name.removeprefix(prefix)} {value}" for name, value in stated]


def _key(entry: str) -> str:
    return entry.partition("{")[2].partition(",")[0].strip()


def _citations(text: str, entries: str) -> dict[str, str]:
    """The words by which a text cites each entry, by its key: authors, year, and the short title if it has one."""
    citations: dict[str, str] = {}
    for entry in entries.split("\n\n"):
        fields = dict(re.findall(r"(\w+)\s*= \{(.*)\}", entry))
        names = [name.partition(",")[0] for name in fields["author"].split(" and ")]
        authors = " and ".join(names) if len(names) <= _NAMED else f"{names[0]} et al."
        title = f", {fields['shorttitle']}" if "shorttitle" in fields else ""
        cited = re.search(rf"{authors} (\({fields['year']}\)|{fields['year']}){title}", text)
        if cited:
            citations[_key(entry)] = cited[0]
    return citations
