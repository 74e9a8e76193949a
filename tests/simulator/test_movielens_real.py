"""Facts of the real MovieLens-100K; the package registry must be reachable, or the cache filled."""

import hashlib

import numpy as np

from rerank_simulator.logs import load_movielens


def test_counts_and_content() -> None:
    log = load_movielens()
    assert (len(log.user), len(log.user_ids), len(log.item_ids)) == (100_000, 943, 1_682)
    # The data set's own description: 20 ratings a user at least, from 1 to 5.
    assert np.bincount(log.user).min() == 20
    assert np.bincount(log.rating.astype(int)).tolist() == [0, 6_110, 11_370, 27_145, 34_174, 21_201]
    assert (int(log.time_ms[0]), int(log.time_ms[-1])) == (874_724_710_000, 893_286_638_000)
    assert int((log.years == 0).sum()) == 2
    pairs = np.stack([log.user, log.item], axis=1).astype("<i4").tobytes()
    assert hashlib.sha256(pairs).hexdigest() == "4b402435da2af1998f0c0a1aa21db73797a0d5d2961d13031acb3a6b3213513d"
