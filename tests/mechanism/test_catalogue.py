"""An analysis is one file, which has its record, and one line: its name in the catalogue."""

from pathlib import Path

from attnscope.explanation import analyses
from attnscope.explanation.catalogue import ANALYSES


def test_every_file_of_an_analysis_has_its_line_and_no_other():
    files = {path.stem for path in Path(analyses.__file__).parent.glob("[a-z]*.py")}
    assert files == {analysis.name for analysis in ANALYSES}
