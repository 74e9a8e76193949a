"""After a restart, clean or not, everything goes on as if there had been none: bit for bit."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from rerank_sdk.personal import Patch


def same(first, second):
    return first.order.tolist() == second.order.tolist() and first.scores.tobytes() == second.scores.tobytes()


def crash_copy(folder, target):
    """The files as a process that is killed now leaves them."""
    target.mkdir()
    for file in sorted(folder.iterdir()):
        if not file.name.endswith("-shm"):
            shutil.copy(file, target / file.name)


def live(reranker, kit, *, learn=True):
    """A day of two users: lists, signs about them, events outside lists, late and repeated ones."""
    reranker.remember(kit.items)
    generator = np.random.default_rng(3)
    for visit in range(6):
        for user, wanted in (("ann", (5, 6)), ("bob", (0, 1))):
            start_s = 3000 * visit
            reranker.rerank(kit.request(20, start_s, user, id=f"visit-{visit}"))
            for place in generator.permutation(20)[:14].tolist():
                liked = kit.items[place].numeric["price"] in wanted
                kind = "like" if liked else str(generator.choice(["skip", "impression", "dwell"]))
                event = kit.event(place, kind, start_s + 1 + place, user, request=f"visit-{visit}", value=float(place))
                reranker.track([event, event])
            reranker.track(kit.event(25, "click", max(0, start_s - 1000), user))
    if learn:
        assert reranker.personalise("ann").accepted
        assert reranker.personalise("bob").accepted


def requests(kit):
    for user in ("ann", "bob", "new"):
        for count, after_s in ((20, 15_030), (30, 16_000), (7, 17_000)):
            yield kit.request(count, after_s, user)
            # A list of its own for each: how an open list was ordered last is not kept over a restart.
            yield kit.request(count, after_s, user, id=f"new-{count}", shown=2)


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_restart_changes_no_bit(open_reranker, kit, tmp_path, end):
    reranker = open_reranker()
    live(reranker, kit)
    if end == "close":
        reranker.close()
        again = open_reranker()
        witness = open_reranker("witness")
        live(witness, kit)
    else:
        reranker.flush()
        crash_copy(tmp_path / "state", tmp_path / "killed")
        again, witness = open_reranker("killed"), reranker
    for request in requests(kit):
        expected, found = witness.rerank(request), again.rerank(request)
        assert expected.fallback is None
        assert same(expected, found)
        assert found.patch_version == expected.patch_version == (0 if request.user == "new" else 1)
    for user in ("ann", "bob"):
        assert again.export(user) == witness.export(user)


def test_many_restarts_change_no_bit(open_reranker, kit):
    witness, reranker = open_reranker("witness"), open_reranker()
    for number in range(8):
        request = kit.request(15, 100 * number, id=f"r{number}")
        assert same(reranker.rerank(request), witness.rerank(request))
        event = kit.event(3 * number % 15, "click", 100 * number + 1, request=f"r{number}" if number % 2 else None)
        assert reranker.track(event) == witness.track(event) == 1
        reranker.close()
        reranker = open_reranker()
        assert reranker.track(event) == 0


def test_what_was_seen_in_a_list_stays_in_its_place_after_a_restart(open_reranker, kit):
    reranker = open_reranker()
    reranker.rerank(kit.request(id="r"))
    reranker.track([kit.event(0, "impression", 61, request="r"), kit.event(4, "hide", 62, request="r")])
    reranker.close()
    ranking = open_reranker().rerank(kit.request(after_s=70, id="r"))
    assert (ranking.order[0], ranking.order[4]) == (0, 4)
    assert ranking.order[1] != 1


def test_the_fields_of_an_item_survive_a_killed_process(open_reranker, kit, tmp_path):
    """Three events are far from any batch: their items must be on disk with them."""
    reranker = open_reranker()
    reranker.remember(kit.items)
    reranker.track([kit.event(number, after_s=number) for number in (22, 25, 28)])
    expected = reranker.rerank(kit.request())
    reranker.flush()
    crash_copy(tmp_path / "state", tmp_path / "killed")
    again = open_reranker("killed")
    assert same(again.rerank(kit.request()), expected)
    assert sorted(again._store.load_items()) == ["item-22", "item-25", "item-28"]


def test_versions_grow_over_restarts(open_reranker, kit):
    reranker = open_reranker()
    live(reranker, kit)
    for version in (2, 3):
        reranker.close()
        reranker = open_reranker()
        assert reranker.personalise("ann").version == version
        assert reranker.rerank(kit.request()).patch_version == version
    assert reranker.rerank(kit.request(user="bob")).patch_version == 1


def test_a_patch_of_another_model_is_ignored_and_found_again(open_reranker, kit):
    reranker = open_reranker()
    live(reranker, kit)
    expected = reranker.rerank(kit.request(after_s=20_000))
    assert expected.patch_version == 1
    reranker.close()
    last = np.array([[0.5], [0.5], [0.5], [0.5], [-0.5], [0.5]], np.float32)
    new_model = open_reranker(bundle=kit.bundle(kit.make_model(last=last)))
    assert new_model.rerank(kit.request(after_s=20_000)).patch_version == 0
    result = new_model.personalise("ann")
    assert (result.accepted, result.pairs, result.version) == (False, 0, 0)
    assert len(new_model.export("ann")["patches"]) == 1
    new_model.close()
    assert same(open_reranker().rerank(kit.request(after_s=20_000)), expected)


def store_patch(reranker, content, version=1):
    base_model = reranker._scorer.model_hash
    reranker._store.save_patch("ann", content, version=version, base_model=base_model, created_ms=0)


def test_a_damaged_patch_is_the_shared_model(open_reranker, kit):
    reranker = open_reranker()
    shared = reranker.rerank(kit.request())
    good = Patch(reranker._scorer.model_hash, np.ones(kit.HIDDEN, np.float32), 0.0).to_bytes()
    other = Patch("00" * 32, np.ones(kit.HIDDEN, np.float32), 0.0).to_bytes()
    flipped = good[:-9] + bytes([good[-9] ^ 1]) + good[-8:]
    for version, content in enumerate([b"", good[:-4], flipped, other, b"x" * len(good)], start=1):
        store_patch(reranker, content, version)
        reranker.close()
        reranker = open_reranker(strict=True)
        ranking = reranker.rerank(kit.request())
        assert (ranking.patch_version, same(ranking, shared)) == (0, True)
    store_patch(reranker, good, 6)
    reranker.close()
    ranking = open_reranker().rerank(kit.request())
    assert (ranking.patch_version, same(ranking, shared)) == (6, False)


def test_a_user_whom_the_features_let_go_is_loaded_again(open_reranker, kit):
    small = open_reranker(bundle=kit.bundle(spec=kit.make_spec(max_users=2)))
    witness = open_reranker("witness")
    users = [f"user-{number}" for number in range(5)]
    for round_number in range(3):
        for number, user in enumerate(users):
            for one in (small, witness):
                one.remember(kit.items)
                event = kit.event((2 * number + round_number) % 12, after_s=round_number, user=user)
                assert one.track([event, event]) == 1
    for user in users:
        assert same(small.rerank(kit.request(user=user)), witness.rerank(kit.request(user=user)))
