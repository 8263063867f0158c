"""Selects labels on different branches of a hierarchy greedily.

The gain of a label is the weighted share of levels on which the label's ancestor is not also an
ancestor of an earlier pick. Levels are weighted by the level factor of the metric drank
(`divgrpc.metrics.hierarchy`). In a tree the gain depends on one number: the depth of the deepest
node that the label's path to the root has in common with the path of any picked label. A gain can
only decrease, so a candidate is updated only if its outdated value is the best so far (lazy greedy,
Minoux 1978).
"""

import numpy as np

from divgrpc.kernels.jit import kernel


@kernel
def meeting_depth(parents, depths, label, peer):
    """Return the depth of the deepest node that the paths of two labels to the root share.

    If the paths share no node, 0 is returned. `parents` and `depths` (m,) int32 are those of
    `LabelTree`. Both labels must have a path to a root; the path includes the label itself.
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
    """Return the sum, 0 to 1, of the level factors of the levels deeper than `depth`.

    In a tree of height h, the factor of level l is 2 (h - l) / (h (h - 1)). So levels depth + 1 to
    h add up to (h - depth) (h - depth - 1) / (h (h - 1)). If h is below 2, 1 is returned, because
    all labels are then on different branches.
    """
    if height < 2:
        return 1.0
    below = height - depth
    return np.float64(below * (below - 1)) / np.float64(height * (height - 1))


@kernel
def pick_labels(labels, scores, counts, tree, height, k, diversity, scratch, picks):
    """Pick up to `k` of the candidates of each row, one by one.

    `labels` (nq, m) int64 and `scores` (nq, m) float32 are the candidates, best first. Row i has
    counts[i] candidates; `counts` is (nq,) uint32. `tree`: (parents, depths), int32. `height`:
    depth of the deepest label. `scratch`: two (m,) int32 arrays. `picks`: the output arrays
    (labels, scores, values), (nq, k) int64, float32 and float32; entries after the last pick stay
    unchanged.

    Each pick has the greatest value, (1 - diversity) * scaled score + diversity * gain. Scores are
    scaled from 0 for the worst candidate to 1 for the best. The first pick has the best score. The
    gain of a label without a path to a root is 0. If values are equal, the first candidate is
    picked.
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
                # n_compared[i] is k + 1 if candidate i is already picked.
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
