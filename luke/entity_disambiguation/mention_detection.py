"""Where the mentions of a raw text are: anchors that are linked often enough, the longest of those that overlap."""

from luke.entity_disambiguation.candidate_table import CandidateTable
from luke.entity_disambiguation.documents import Mention


def detect_mentions(text: str, table: CandidateTable, min_link_probability: float, max_candidates: int) -> list[Mention]:
    """The mentions of a text by their starts, with candidates; none reaches over a line end.

    Of all parts of the text that are anchors with at least this link probability (Mihalcea and Csomai 2007), the longest is
    taken, and those that overlap it are dropped, and so on; of equally long ones the more probable, then the first.
    """
    found = []
    offset = 0
    for line in text.splitlines(keepends=True):
        for span in table.find_spans(line):
            probability = table.link_probability(span.row)
            if probability >= min_link_probability and any(map(str.isalnum, line[span.start : span.end])):
                found.append((span.start - span.end, -probability, offset + span.start, offset + span.end, span.row))
        offset += len(line)
    taken = bytearray(len(text))
    mentions = []
    for _, _, start, end, row in sorted(found):
        if not any(taken[start:end]):
            taken[start:end] = b"\x01" * (end - start)
            mentions.append(Mention(start, end, candidates=table.entry(row).candidates[:max_candidates]))
    return sorted(mentions, key=lambda mention: mention.start)
