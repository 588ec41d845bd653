from ._catalogue import (
    DEFAULT,
    EQUAL,
    OF_GROUPS,
    OF_OFFSETS,
    PATCH_STATISTICS,
    SEVERAL,
    STATISTICS,
    SUMMARIES,
    Statistic,
    Wording,
    choose,
    without_end,
    wording,
)
from ._each import of_several, with_each
from ._forms import Form, compare_call, compare_forms, usual_forms
from ._independence import (
    RARE,
    Estimate,
    between_head_share,
    effective_labels,
    independence,
    intraclass_correlation,
    label_information,
    label_shares,
    sign_agreement,
)
from ._keep import rows_of_part
from ._kinds import LEAST_SHARE, LOCAL
from ._labels import PEAK_SHARE, Clustering, cluster_profiles, direction, name_profile
from ._map_weights import weight_rows
from ._merged import finish_scan
from ._numbering import numbering_note
from ._of_matrices import measure_weights
from ._of_windows import statistics_of
from ._offset_shares import OffsetShares, shares_by_offset
from ._over_documents import heads_of_run, over_documents
from ._pass import StatisticsObserver
from ._places import NEEDED
from ._pools import VARIANCE, in_pools, pooled
from ._questions import RankedHead, majority_names
from ._ranking import heads_apart, peaks, rank_heads
from ._raw import weights
from ._reading import Reading
from ._received_text import received
from ._reduce import reduce_call
from ._row_intervals import intervals
from ._row_samples import ESTIMATED
from ._rows import indicator_columns
from ._said import (
    WEIGHTS_NOTE,
    corpus_said,
    entries_said,
    kinds_said,
    layers_said,
    means_note,
    ranking_said,
)
from ._scan import scan
from ._scan_texts import beyond_note, window_length
from ._stored import (
    HEADS,
    NOTES,
    SAMPLE,
    WINDOWS,
    default_out,
    keeps_maps_of,
    load_heads,
    load_scan,
    notes_of,
    scan_pieces,
    unit_of,
)
from ._summary import summarize
from ._top_keys import TOP, TopKeys, context, key_side, recent_queries, top_keys, top_places
from ._watched import Seen, watch

__all__ = [
    "DEFAULT",
    "EQUAL",
    "ESTIMATED",
    "HEADS",
    "LEAST_SHARE",
    "LOCAL",
    "NEEDED",
    "NOTES",
    "OF_GROUPS",
    "OF_OFFSETS",
    "PATCH_STATISTICS",
    "PEAK_SHARE",
    "RARE",
    "SAMPLE",
    "SEVERAL",
    "STATISTICS",
    "SUMMARIES",
    "TOP",
    "VARIANCE",
    "WEIGHTS_NOTE",
    "WINDOWS",
    "Clustering",
    "Estimate",
    "Form",
    "OffsetShares",
    "RankedHead",
    "Reading",
    "Seen",
    "Statistic",
    "StatisticsObserver",
    "TopKeys",
    "Wording",
    "between_head_share",
    "beyond_note",
    "choose",
    "cluster_profiles",
    "compare_call",
    "compare_forms",
    "context",
    "corpus_said",
    "default_out",
    "direction",
    "effective_labels",
    "entries_said",
    "finish_scan",
    "heads_apart",
    "heads_of_run",
    "in_pools",
    "independence",
    "indicator_columns",
    "intervals",
    "intraclass_correlation",
    "keeps_maps_of",
    "key_side",
    "kinds_said",
    "label_information",
    "label_shares",
    "layers_said",
    "load_heads",
    "load_scan",
    "majority_names",
    "means_note",
    "measure_weights",
    "name_profile",
    "notes_of",
    "numbering_note",
    "of_several",
    "over_documents",
    "peaks",
    "pooled",
    "rank_heads",
    "ranking_said",
    "received",
    "recent_queries",
    "reduce_call",
    "rows_of_part",
    "scan",
    "scan_pieces",
    "shares_by_offset",
    "sign_agreement",
    "statistics_of",
    "summarize",
    "top_keys",
    "top_places",
    "unit_of",
    "usual_forms",
    "watch",
    "weight_rows",
    "weights",
    "window_length",
    "with_each",
    "without_end",
    "wording",
]
