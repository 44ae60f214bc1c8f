# requirements: sdk
"""The status page in a real browser: it shows what happens, loads nothing from elsewhere,
reports no error, asks for a key where one is needed, and shows hostile texts as text."""

import os

import tinker
from tinker import types

from _browser import Browser
from _server import Server, attempt, check, done

TOKENS = [3, 5, 7, 9, 11, 13, 15, 17, 19, 21]
HOSTILE = "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=2</script>"
ROWS = "[...document.querySelectorAll('#%s tbody tr')].map(r => r.innerText)"


def train(name, steps):
    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=name, rank=4,
                                                   user_metadata={HOSTILE: HOSTILE})
    datum = types.Datum(model_input=types.ModelInput.from_ints(TOKENS[:-1]),
                        loss_fn_inputs={"target_tokens": TOKENS[1:], "weights": [1.0] * 9})
    losses = []
    for _ in range(steps):
        passed = training.forward_backward([datum] * 4, "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=0.01)).result()
        losses.append(passed.result().metrics["loss:sum"] / 36)
    return service, training, losses


def clean(page, server):
    check(page.errors == [], "no error in the console", f"{page.errors}")
    foreign = [u for u in page.requests if not u.startswith((server.url, "data:"))]
    check(page.requests and not foreign, "no request to another place", f"{foreign}")
    check(page.js("typeof window.hacked") == "undefined", "no text of a user was run")


def runs(page, run, losses):
    row = page.until(f"({ROWS % 'runs'}).find(t => t.includes('{run}') && t.includes('\\t8\\t'))")
    check(bool(row), "the live run is listed")
    check(HOSTILE in (row or ""), "its metadata is shown as text", f"{row}")
    shown = (row or "").rstrip().split("\t")[-1]
    check(abs(float(shown or "nan") - losses[-1]) < 1e-3, "with its last loss", f"{losses} {row}")
    points = page.js("document.querySelector('#runs polyline').getAttribute('points')") or ""
    heights = [float(p.split(",")[1]) for p in points.split()]
    low, top = min(losses), max(losses)
    want = [31 - 30 * (v - low) / (top - low) for v in losses]
    check(len(heights) == len(want) and all(abs(a - b) < 0.1 for a, b in zip(heights, want)),
          "its losses are drawn as a curve", f"{points} {want}")
    check(page.js("document.querySelectorAll('#runs img, #runs script').length") == 0,
          "markup in texts makes no element")


def numbers(page):
    text = page.until("/tokens\\/s [0-9]/.test(document.getElementById('numbers').innerText)"
                      " && document.getElementById('numbers').innerText")
    for word in ("Training tokens/s", "Sampled tokens/s", "Samples waiting", "Samples running",
                 "Memory"):
        check(word in (text or ""), f"{word} is shown", f"{text}")


def sampling(page, path):
    check(bool(page.until(f"({ROWS % 'checkpoints'}).find(t => t.includes('{path}'))")),
          "the checkpoint is listed")
    check(bool(page.until("[...document.getElementById('model').options]"
                          f".some(o => o.value === '{path}')")), "and can be chosen")
    page.js(f"document.getElementById('model').value = '{path}';"
            "document.getElementById('prompt').value = 'Hello';"
            "document.getElementById('go').click()")
    text = page.until("document.getElementById('answer').innerText.replace('…', '').length > 0"
                      " && document.getElementById('answer').innerText")
    check(bool(text) and "error" not in text and "detail" not in text,
          "a sample from it appears", f"{text}")


def with_key(page):
    with Server("--api-key", "tml-secret-1") as server:
        page.open(server.url + "/")
        check(bool(page.until("document.getElementById('key') &&"
                              " !document.getElementById('key').hidden")), "a key is asked for")
        check(page.js("document.querySelectorAll('#numbers span').length") == 0,
              "nothing is shown without it")
        page.js("const k = document.getElementById('apikey'); k.value = 'tml-secret-1';"
                "k.dispatchEvent(new Event('change'))")
        check(bool(page.until("document.querySelectorAll('#numbers span').length > 0")),
              "with it there are numbers")
        clean(page, server)
        page.js("const j = document.getElementById('apikey'); j.value = 'tml-wrong';"
                "j.dispatchEvent(new Event('change'))")
        check("Invalid API key" in (page.until("document.getElementById('error').innerText") or ""),
              "a wrong key is named as such")


def without_key(page):
    # The name of a model is the operator's, but a page must not trust even that.
    name = "<u>model</u>"
    model = os.path.abspath("models/tiny")
    with Server("--model", f"{name}={model}") as server:
        page.open(server.url + "/")
        service, training, losses = train(name, 8)
        runs(page, training.get_info().model_id, losses)
        path = training.save_weights_for_sampler("page").result().path
        sampling(page, path)
        numbers(page)
        check(page.js("document.querySelectorAll('u').length") == 0
              and page.until(f"({ROWS % 'runs'}).some(t => t.includes('{name}'))"),
              "a hostile model name is text")
        check(page.js("document.getElementById('error').innerText") == "", "no error is shown")
        clean(page, server)


with Browser() as page:
    attempt("without a key", lambda: without_key(page))
    attempt("with a key", lambda: with_key(page))
done()
