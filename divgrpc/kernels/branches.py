"""Greedy selection of labels on different branches of a hierarchy.

The gain of a label is the share of levels on which it adds an ancestor to the ancestors of the
earlier picks, each level weighted by the level factor of drank (`divgrpc.metrics.hierarchy`). In a
tree that share depends on one number: the depth of the deepest node where the label's path to the
root meets the path of any picked label. The gain only shrinks, so a candidate is updated only when
it would be picked as it stands (Minoux 1978).
"""

import numpy as np

from divgrpc.kernels.jit import kernel


@kernel
def meeting_depth(parents, depths, label, peer):
    """Return the depth of the deepest node on both labels' paths to the root; 0 if there is none.

    `parents` and `depths` (m,) int32 as in `LabelTree`; both labels have a path to a root. A label
    is on its own path.
    """
    while label != peer:
        if depths[label] >= depths[peer]:
            label = parents[label]
        else:
            peer = parents[peer]
        if label < 0 or peer < 0:
            return 0
    return depths[label]


@kernel
def branch_gain(height, depth):
    """Return the sum of the level factors of the levels below `depth`, from 0 to 1.

    LF(l) = 2 (h - l) / (h (h - 1)), so levels `depth` + 1 to h have (h - depth) (h - depth - 1) /
    (h (h - 1)). In a tree of one level all labels are on different branches.
    """
    if height < 2:
        return 1.0
    below = height - depth
    return np.float64(below * (below - 1)) / np.float64(height * (height - 1))


@kernel
def pick_labels(labels, scores, counts, tree, height, k, diversity, scratch, picks):
    """Pick up to `k` of the candidates of each row, one by one.

    `labels` (nq, m) int64 and `scores` (nq, m) float32, best first; row i has counts[i] uint32 of
    them. `tree`: (parents, depths), int32; `height`: depth of the deepest label. `scratch`:
    (meetings, n_compared), (m,) int32. `picks`: (labels (nq, k) int64, scores, values (nq, k)
    float32) of the picks; entries after the last pick stay unchanged.

    A value is what the pick maximises: 1 - diversity times the score, scaled from 0 for the worst
    candidate to 1 for the best, plus diversity times the gain. The first pick has the best score. A
    label without a path to a root gains nothing. Of equal values the first is picked.
    """
    parents, depths = tree
    meetings, n_compared = scratch
    pick_ids, pick_scores, values = picks
    relevance = 1.0 - diversity
    for row in range(len(counts)):
        count = np.int64(counts[row])
        if count == 0:
            continue
        least = np.float64(scores[row, count - 1])
        width = np.float64(scores[row, 0]) - least
        for i in range(count):
            meetings[i] = n_compared[i] = 0
        for step in range(min(k, count)):
            best, most = -1, -np.inf
            for i in range(count):
                # A picked candidate counts as compared with more picks than there are.
                if n_compared[i] > k:
                    continue
                label = labels[row, i]
                share = (np.float64(scores[row, i]) - least) / width if width > 0 else 1.0
                gains = depths[label] >= 0 and step > 0
                gain = branch_gain(height, meetings[i]) if gains else 0.0
                value = relevance * share + diversity * gain
                if value <= most:
                    continue
                if gains and n_compared[i] < step:
                    for earlier in range(n_compared[i], step):
                        pick = pick_ids[row, earlier]
                        if depths[pick] >= 0:
                            depth = meeting_depth(parents, depths, label, pick)
                            meetings[i] = max(meetings[i], depth)
                    n_compared[i] = step
                    value = relevance * share + diversity * branch_gain(height, meetings[i])
                if value > most:
                    best, most = i, value
            pick_ids[row, step] = labels[row, best]
            pick_scores[row, step] = scores[row, best]
            values[row, step] = most
            n_compared[best] = k + 1
