# SPDX-License-Identifier: Apache-2.0
"""Several models side by side: named at the start, loaded and unloaded while others answer."""
import threading

import kvdclient as k
import pytest
from conftest import LONG, SANITIZED, make_tiny
from tinymodels import KINDS

PROMPT = "The quick brown fox jumps over the lazy dog, and the river runs under the bridge. "
MEMORY = ("--kv-memory", "64M", "--threads", "2")
SLOW_LOADS = {"KVD_TEST_LOAD_DELAY_MS": "5"}       # a second for the large model


def args_of(several, *names):
    return [x for n in names for x in ("--model", several[n])]


@pytest.fixture(scope="session")
def alone(several, tmp_path_factory):
    """{model: (ids, log-probabilities, text)} of a greedy run on a daemon that has nothing else."""
    from conftest import Daemon
    answers = {}
    for name, path in several.items():
        d = Daemon(tmp_path_factory.mktemp("alone"), "--model", path, *MEMORY)
        with d.client() as c:
            r = c.generate(PROMPT, n=60, ignore_eos=True, logprobs=0)
        d.stop()
        answers[name] = (r.ids, r.logprobs, r.text)
    assert len({tuple(a[0]) for a in answers.values()}) == len(KINDS)
    return answers


def answer(c, model, **kw):
    r = c.generate(PROMPT, model=model, **{"n": 60, "ignore_eos": True, "logprobs": 0, **kw})
    return r.ids, r.logprobs, r.text


def test_side_by_side_as_alone(daemons, several, alone):
    d = daemons(*args_of(several, *KINDS), *MEMORY)
    wrong = []

    def run(name):
        with d.client(name=name) as c:
            for _ in range(3):
                if answer(c, name) != alone[name]:
                    wrong.append(name)

    threads = [threading.Thread(target=run, args=(name,)) for name in list(KINDS) * 2]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    with d.client() as c:
        models = c.call(k.MODELS)["models"]
        assert [m["name"] for m in models] == list(KINDS)
        assert [m["is_default"] for m in models] == [True, False, False]
        assert all(m["state"] == "ready" and m["percent"] == 100 for m in models)
        assert c.call(k.STATUS)["n_models"] == 3


def test_the_first_is_the_default_then_the_oldest(daemons, several, alone):
    d = daemons(*args_of(several, "other", "small"), *MEMORY)
    with d.client() as c:
        assert answer(c, "other") == alone["other"]
        r = c.generate(PROMPT, n=60, ignore_eos=True, logprobs=0)
        assert (r.ids, r.logprobs, r.text) == alone["other"]
        c.call(k.UNLOAD, {"model": "other"})
        r = c.generate(PROMPT, n=60, ignore_eos=True, logprobs=0)
        assert (r.ids, r.logprobs, r.text) == alone["small"]
        c.load(several["other"], "other")
        r = c.generate(PROMPT, n=60, ignore_eos=True, logprobs=0)
        assert r.ids == alone["small"][0]


def test_no_model(daemons, several, alone):
    d = daemons(*MEMORY)
    assert d.models() == {}
    with d.client() as c:
        with pytest.raises(k.Refused) as e:
            c.generate("x", n=1)
        assert e.value.code == 8 and e.value.fields["message"] == "no model is loaded"
        with pytest.raises(k.Refused) as e:
            c.tokenize("x")
        assert e.value.code == 8
        assert c.load(several["small"], "first")["name"] == "first"
        assert answer(c, "first") == alone["small"]
        c.call(k.UNLOAD, {"model": "first"})
        assert d.models() == {}
        c.load(several["third"], "first")
        assert answer(c, "first") == alone["third"]


def test_an_unknown_model_is_refused_with_those_that_are_there(daemons, several):
    d = daemons(*args_of(several, "small", "other"), *MEMORY)
    with d.client() as c:
        for call in (lambda: c.generate("x", n=1, model="smal"), lambda: c.call(k.UNLOAD, {"model": "smal"})):
            with pytest.raises(k.Refused) as e:
                call()
            assert e.value.code == 8 and e.value.field == "model"
            assert '"smal"' in e.value.fields["message"] and '"small", "other"' in e.value.fields["message"]


def test_a_model_that_cannot_be_loaded_at_the_start_ends_the_daemon(daemons, several, directory):
    bad = directory / "bad.gguf"
    bad.write_bytes(several["small"].read_bytes()[:1000])
    d = daemons(*args_of(several, "small"), "--model", bad, *MEMORY, wait=False)
    assert d.proc.wait(60) == 1
    d.stopped = True
    assert f"cannot load {bad}: " in d.log.read_text()
    assert not d.socket.exists()


def test_two_files_of_one_name_are_refused(daemons, several, directory):
    copy = directory / "small.gguf"
    copy.write_bytes(several["other"].read_bytes())
    d = daemons(*args_of(several, "small"), "--model", copy, wait=False)
    assert d.proc.wait(60) == 2
    d.stopped = True
    assert 'the same name, "small"' in d.log.read_text()


def test_requests_wait_for_a_model_that_loads(daemons, several, alone, large_model):
    """Requests for a loading model wait; others are served meanwhile."""
    d = daemons(*args_of(several, "small"), *MEMORY, env=SLOW_LOADS)
    with d.client() as loader, d.client() as c:
        large = loader.load(large_model, "large", wait=False)
        late = loader.load(several["other"], "other", wait=False)
        d.until(lambda: d.models().get("other") == "loading", "the loads have begun")
        waiting = c.submit(PROMPT, model="other", n=60, ignore_eos=True, logprobs=0)
        assert answer(c, "small") == alone["small"]
        rows = [p for p in c.call(k.PS)["processes"] if p["model"] == "other"]
        assert [p["phase"] for p in rows] in (["queued"], [])
        r = c.collect(waiting)[waiting]
        assert (r.ids, r.logprobs, r.text) == alone["other"]
        assert loader.reply(large)["name"] == "large" and loader.reply(late)["name"] == "other"


def test_loading_does_not_disturb_who_generates(daemons, several, alone, large_model):
    d = daemons(*args_of(several, "small"), *MEMORY, env=SLOW_LOADS)
    with d.client() as c, d.client() as loader:
        rid = c.submit(PROMPT, n=60, ignore_eos=True, logprobs=0)
        load = loader.load(large_model, "large", wait=False)
        r = c.collect(rid)[rid]
        assert (r.ids, r.logprobs, r.text) == alone["small"]
        loader.reply(load)
        assert answer(c, "small") == alone["small"]


def test_progress(daemons, large_model):
    d = daemons(*MEMORY, env=SLOW_LOADS)
    with d.client() as c:
        rid = c.load(large_model, "large", wait=False, progress=True)
        c.reply(rid)
        told = [f["percent"] for msg, f in c.replies if msg == k.LOADING and f["id"] == rid]
        assert told and told == sorted(told) and all(p < 100 for p in told)
        rid = c.load(large_model, "again", wait=False)
        c.reply(rid)
        assert not [f for msg, f in c.replies if msg == k.LOADING and f["id"] == rid]


def test_names_are_unique(daemons, several, large_model):
    d = daemons(*args_of(several, "small"), *MEMORY, env=SLOW_LOADS)
    with d.client() as c:
        first = c.load(large_model, "x", wait=False)
        for name in ("small", "x"):
            with pytest.raises(k.Refused) as e:
                c.load(several["other"], name)
            assert e.value.code == 17 and e.value.field == "name"
        c.reply(first)
        assert d.models() == {"small": "ready", "x": "ready"}


def test_sixteen_models_and_no_more(daemons, several):
    d = daemons(*MEMORY)
    with d.client() as c:
        for i in range(16):
            c.load(several["third"], f"m{i}")
        with pytest.raises(k.Refused) as e:
            c.load(several["third"], "one more")
        assert e.value.code == 4
        assert len(c.call(k.MODELS)["models"]) == 16
        c.call(k.UNLOAD, {"model": "m7"})
        c.load(several["third"], "one more")


# --- giving up ------------------------------------------------------------------------------

def test_a_client_that_goes_gives_up_its_loads(daemons, several, large_model):
    d = daemons(*args_of(several, "small"), *MEMORY, env=SLOW_LOADS)
    memory = d.memory()
    c = d.client()
    c.load(large_model, "large", wait=False)
    c.load(several["other"], "other", wait=False)
    d.until(lambda: "other" in d.models(), "the loads have begun")
    c.close()
    d.until(lambda: d.models() == {"small": "ready"}, "the loads are given up")
    d.until(lambda: d.memory() < memory + (20 << 20), "the memory is given back")
    assert d.log.read_text().count("the load was given up") == 2


def test_cancel_gives_up_a_load(daemons, several, large_model):
    d = daemons(*args_of(several, "small"), *MEMORY, env=SLOW_LOADS)
    with d.client() as c:
        rid = c.load(large_model, "large", wait=False)
        other = c.load(several["other"], "other", wait=False)
        waiting = c.submit(PROMPT, model="other", n=3)
        c.cancel(other)
        c.cancel(rid)
        for r in (rid, other):
            with pytest.raises(k.Refused) as e:
                c.reply(r)
            assert e.value.code == 15
        with pytest.raises(k.Refused) as e:
            c.reply(waiting)
        assert e.value.code == 8 and "given up" in e.value.fields["message"]
        assert d.models() == {"small": "ready"}


def test_unload_gives_up_a_load(daemons, large_model):
    d = daemons(*MEMORY, env=SLOW_LOADS)
    with d.client() as c, d.client() as other:
        rid = c.load(large_model, "large", wait=False)
        d.until(lambda: d.models() == {"large": "loading"}, "the load has begun")
        other.call(k.UNLOAD, {"model": "large"})
        with pytest.raises(k.Refused) as e:
            c.reply(rid)
        assert e.value.code == 15
        assert d.models() == {}


def test_unload_of_what_the_configuration_names(daemons, several, large_model, alone):
    """That a model of the configuration was unloaded before it was there is no failure to start."""
    d = daemons("--model", large_model, *args_of(several, "small"), *MEMORY, env=SLOW_LOADS, wait=False)
    d.until(lambda: d.socket.exists(), "it listens")
    with d.client() as c:
        c.call(k.UNLOAD, {"model": "large"})
        assert answer(c, "small") == alone["small"]
    d.wait_ready()
    assert d.models() == {"small": "ready"}


def test_stopping_while_loading(daemons, several, large_model):
    d = daemons(*args_of(several, "small"), *MEMORY, env=SLOW_LOADS)
    c = d.client()
    rid = c.load(large_model, "large", wait=False)
    waiting = c.submit("abc", model="large", n=3)
    d.until(lambda: d.models().get("large") == "loading", "the load has begun")
    d.stop()
    for r in (rid, waiting):
        with pytest.raises(k.Refused) as e:
            c.reply(r)
        assert e.value.code == 11


# --- unloading ------------------------------------------------------------------------------

SLOW = {"KVD_TEST_STEP_DELAY_MS": "3"}


def test_unload_waits_for_requests(daemons, several, alone):
    d = daemons(*args_of(several, "small", "other"), *MEMORY, env=SLOW)
    with d.client() as c, d.client() as other:
        rids = [c.submit(PROMPT, model=m, n=60, ignore_eos=True, logprobs=0) for m in ("small", "small", "other")]
        d.until(lambda: d.status()["n_running"] == 3, "all run")
        other.send(k.UNLOAD, {"id": 99, "model": "small"})
        d.until(lambda: d.models().get("small") == "unloading", "it is being unloaded")
        for call in (lambda: other.generate("x", n=1, model="small"), lambda: other.load(several["small"], "small")):
            with pytest.raises(k.Refused) as e:
                call()
            assert e.value.code in (8, 17)
        results = c.collect(*rids)
        for rid, m in zip(rids, ("small", "small", "other")):
            r = results[rid]
            assert (r.ids, r.logprobs, r.text) == alone[m]
        other.reply(99)
        assert d.models() == {"other": "ready"}


def test_unload_now_ends_requests(daemons, several, alone):
    d = daemons(*args_of(several, "small", "other"), *MEMORY, env=SLOW)
    with d.client() as c, d.client() as other:
        ended = [c.submit(PROMPT, model="small", n=100000, ignore_eos=True) for _ in range(3)]
        kept = c.submit(PROMPT, model="other", n=60, ignore_eos=True, logprobs=0)
        d.until(lambda: d.status()["n_running"] == 4, "all run")
        # One that waits for the end is hastened by another.
        c.send(k.UNLOAD, {"id": 98, "model": "small"})
        d.until(lambda: d.models().get("small") == "unloading", "it is being unloaded")
        other.call(k.UNLOAD, {"model": "small", "now": True})
        results = c.collect(*ended, kept)
        c.reply(98)
        for rid in ended:
            assert results[rid].error["code"] == 14 and b"unloaded" in results[rid].error["text"]
        assert (results[kept].ids, results[kept].logprobs, results[kept].text) == alone["other"]
        d.idle(sessions=3)
        other.load(several["small"], "small")
        assert answer(other, "small") == alone["small"]


def test_a_client_that_does_not_read_holds_no_model(daemons, several):
    """A parked request keeps its model from a draining unload; one with `now` ends it."""
    d = daemons(*args_of(several, "small"), *MEMORY)
    with d.client(ring=1 << 16) as deaf, d.client() as c:
        deaf.submit(PROMPT, n=100000, ignore_eos=True)
        d.until(lambda: d.status()["n_parked"] == 1, "it is parked")
        c.call(k.UNLOAD, {"model": "small", "now": True})
        assert d.models() == {}


def test_cycles_leave_nothing_behind(daemons, several):
    """Loading, using, failing and unloading again and again: no memory, descriptors or threads are kept."""
    d = daemons(*args_of(several, "small"), *MEMORY)
    n = 300 if LONG else 50
    with d.client() as c:
        def cycle(i):
            c.load(several["other"], "x")
            c.generate(PROMPT, model="x", n=4)
            c.call(k.UNLOAD, {"model": "x", "now": bool(i % 2)})
            with pytest.raises(k.Refused):
                c.load(__file__, "y")
        for i in range(60):     # every thread has its heap by then
            cycle(i)
        fds, threads, memory = d.fds(), d.threads(), d.memory()
        for i in range(n):
            cycle(i)
        d.until(lambda: d.fds() <= fds and d.threads() <= threads, "descriptors and threads are given back")
        assert SANITIZED or d.memory() < memory + (1 << 20), (memory, d.memory())


def test_load_and_unload_under_fire(daemons, several, alone):
    """Clients generate on a model that comes and goes: an answer is right or refused."""
    d = daemons(*args_of(several, "small"), *MEMORY)
    stop, wrong, right = threading.Event(), [], []

    def fire(model):
        with d.client(name=model) as c:
            while not stop.is_set():
                try:
                    r = c.generate(PROMPT, model=model, n=60, ignore_eos=True, logprobs=0)
                except k.Refused as e:
                    if e.code not in (8, 14):
                        wrong.append(e.fields)
                    continue
                if r.error:
                    if r.error["code"] != 14:
                        wrong.append(r.error)
                elif (r.ids, r.logprobs, r.text) != alone[model]:
                    wrong.append(r.ids)
                else:
                    right.append(model)

    threads = [threading.Thread(target=fire, args=(m,)) for m in ("small", "other", "other")]
    for t in threads:
        t.start()
    with d.client() as c:
        for i in range(60 if LONG else 12):
            c.load(several["other"], "other")
            c.generate("x", model="other", n=20, ignore_eos=True)
            c.call(k.UNLOAD, {"model": "other", "now": bool(i % 2)})
    stop.set()
    for t in threads:
        t.join()
    assert not wrong, wrong[0]
    assert "small" in right and "other" in right


def test_faulty_file_beside_a_good_one(daemons, several, alone, directory):
    """A load that fails leaves the others alone and keeps no memory."""
    d = daemons(*args_of(several, "small"), *MEMORY)
    bad = make_tiny(directory / "bad.gguf", "--remove", "tokenizer.ggml.merges")
    with d.client() as c:
        with pytest.raises(k.Refused) as e:
            c.load(bad, "bad")
        assert e.value.code == 16 and "merges" in e.value.fields["message"]
        memory = d.memory()
        for _ in range(20):
            with pytest.raises(k.Refused):
                c.load(bad, "bad")
        assert SANITIZED or d.memory() < memory + (2 << 20)
        assert answer(c, "small") == alone["small"]
        assert d.models() == {"small": "ready"}
