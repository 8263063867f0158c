"""Greedy selection of labels that lie on different branches of a hierarchy.

A label's gain is the share of the levels on which it adds an ancestor to those of the labels picked
before, each level weighed by the level factor of drank (see `divgrpc.metrics.hierarchy`). In a tree
that share depends on one number alone: the depth of the deepest node where the label's path to the
root meets the path of any picked label. The gain only shrinks, so a candidate is brought up to date
only when it would be picked as it stands (Minoux 1978).
"""

import numpy as np

from divgrpc.kernels.jit import kernel


@kernel
def meeting_depth(parents, depths, label, other):
    """Return the depth of the deepest node on both paths to the root; 0 where there is none.

    `parents` and `depths` (m,) int32 as in `LabelTree`; a root reaches both labels. A label is on
    its own path.
    """
    while label != other:
        if depths[label] >= depths[other]:
            label = parents[label]
        else:
            other = parents[other]
        if label < 0 or other < 0:
            return 0
    return depths[label]


@kernel
def branch_gain(height, depth):
    """Return the sum of the level factors of the levels below `depth`, from 0 to 1.

    LF(l) = 2 (h - l) / (h (h - 1)), so levels `depth` + 1 to h have (h - depth) (h - depth - 1) /
    (h (h - 1)). In a tree of one level all labels are on branches of their own.
    """
    if height < 2:
        return 1.0
    below = height - depth
    return np.float64(below * (below - 1)) / np.float64(height * (height - 1))


@kernel
def pick_apart(labels, scores, counts, tree, height, k, diversity, scratch, picks):
    """Pick up to `k` of the candidates of each row, one by one.

    `labels` (nq, m) int64 and `scores` (nq, m) float32, best first, of which row i has `counts[i]`
    uint32. `tree`: parents and depths (L or more,) int32; `height` is the depth of the deepest
    label. `scratch`: met and seen (m,) int32. `picks`: the labels (nq, k) int64 that are picked,
    their scores and their values (nq, k) float32; what is past the picks of a row is left as it is.
    A value is what was maximised: 1 - diversity times the score, scaled between the worst
    candidate's 0 and the best one's 1, plus diversity times the gain. The first pick has the best
    score. A label that no root reaches gains nothing. Of equals the first is picked.
    """
    parents, depths = tree
    met, seen = scratch
    picked, worth, values = picks
    relevance = 1.0 - diversity
    for row in range(len(counts)):
        count = np.int64(counts[row])
        if count == 0:
            continue
        least = np.float64(scores[row, count - 1])
        width = np.float64(scores[row, 0]) - least
        for i in range(count):
            met[i] = seen[i] = 0
        for step in range(min(k, count)):
            best, most = -1, -np.inf
            for i in range(count):
                # A picked candidate has seen more picks than there are.
                if seen[i] > k:
                    continue
                label = labels[row, i]
                share = (np.float64(scores[row, i]) - least) / width if width > 0 else 1.0
                known = depths[label] >= 0 and step > 0
                gain = branch_gain(height, met[i]) if known else 0.0
                value = relevance * share + diversity * gain
                if value <= most:
                    continue
                if known and seen[i] < step:
                    for earlier in range(seen[i], step):
                        other = picked[row, earlier]
                        if depths[other] >= 0:
                            met[i] = max(met[i], meeting_depth(parents, depths, label, other))
                    seen[i] = step
                    value = relevance * share + diversity * branch_gain(height, met[i])
                if value > most:
                    best, most = i, value
            picked[row, step], worth[row, step] = labels[row, best], scores[row, best]
            values[row, step] = most
            seen[best] = k + 1
