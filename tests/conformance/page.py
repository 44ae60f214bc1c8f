# requirements: sdk
"""The page at / in a real browser, against a real training run: each view shows the program's
numbers, works with the keyboard alone, loads nothing from elsewhere, reports no error, breaks no
rule of accessibility, and shows hostile texts as text.

PAGE_SCREENSHOTS=DIR keeps the pictures of docs/ there."""

import hashlib
import json
import os
import pathlib
import subprocess
import tarfile
import tempfile
import urllib.parse
import urllib.request

import tinker
from tinker import types

from _browser import Browser
from _server import BUILD, Server, attempt, check, done

AXE = "4.14.0"
AXE_SHA256 = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"
CACHE = pathlib.Path(os.environ.get("CONFORMANCE_CACHE")
                     or pathlib.Path.home() / ".cache/tinker-conformance")
SHOTS = os.environ.get("PAGE_SCREENSHOTS") or os.path.join(BUILD, "screenshots")
HOSTILE = "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=2</script>"
TOKENS = [3, 5, 7, 9, 11, 13, 15, 17, 19, 21]
STORY = "tiny"
STEPS = 5000
ROWS = "[...document.querySelectorAll('.runs tbody tr')]"
LIVE = "(e => e && e.textContent === 'Live')(document.getElementById('link'))"


def axe():
    """The source of axe-core, pinned."""
    path = CACHE / "npm" / f"axe-core-{AXE}.min.js"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            name = subprocess.run(["npm", "pack", "--silent", f"axe-core@{AXE}"], cwd=folder,
                                  check=True, capture_output=True, text=True).stdout.split()[-1]
            with tarfile.open(os.path.join(folder, name)) as tar:
                path.write_bytes(tar.extractfile("package/axe.min.js").read())
    text = path.read_bytes()
    if hashlib.sha256(text).hexdigest() != AXE_SHA256:
        raise RuntimeError(f"{path} is not axe-core {AXE}")
    return text.decode()


AXE_SOURCE = axe()


def http(server, method, path, body, key="tml-dummy"):
    """What a Python program without any library sends."""
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), method=method,
                                     headers={"Content-Type": "application/json",
                                              "X-API-Key": key})
    with urllib.request.urlopen(request) as response:
        return response.read()


# ---- training -----------------------------------------------------------------------------------

def make_datum(shift):
    tokens = [(t + shift) % 200 + 3 for t in TOKENS]
    # The first tokens are a prompt: they count nothing, and the loss is the mean over the others.
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]),
                       loss_fn_inputs={"target_tokens": tokens[1:],
                                       "weights": [0.0] * 4 + [1.0] * 5})


def mean_nll(result, data):
    """What the cookbook prints as train_mean_nll."""
    total = weight = 0.0
    for output, datum in zip(result.loss_fn_outputs, data):
        weights = datum.loss_fn_inputs["weights"].data
        for logprob, w in zip(output["logprobs"].data, weights):
            total -= logprob * w
            weight += w
    return total / weight


def train(service, model, steps, lr=0.01, window=40, rank=4, data=None, **metadata):
    """A run of so many steps and the losses that the program computes."""
    training = service.create_lora_training_client(base_model=model, rank=rank,
                                                   user_metadata=metadata or None)
    losses, waiting = [], []

    def finish(count):
        while len(waiting) > count:
            passed, stepped, batch = waiting.pop(0)
            stepped.result()
            losses.append(mean_nll(passed.result(), batch))

    for i in range(steps):
        batch = data(i) if data else [make_datum(i % 3)]
        waiting.append((training.forward_backward(batch, "cross_entropy"),
                        training.optim_step(types.AdamParams(learning_rate=lr)), batch))
        finish(window)
    finish(0)
    return training, losses


def train_long(model):
    """The same in C, where 5,000 steps take seconds: its id, and the losses that it printed."""
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "history")
        libs = subprocess.run(["pkg-config", "--libs", "libcurl", "libzstd", "zlib", "libpcre2-8",
                               "libutf8proc"], check=True, capture_output=True, text=True).stdout
        subprocess.run(["gcc", "-Iinclude", "-o", program, "tests/e2e/history.c",
                        os.path.join(BUILD, "libtinker.a"), *libs.split(), "-lm", "-pthread"],
                       check=True)
        lines = subprocess.run([program, model, str(STEPS)], check=True, capture_output=True,
                               text=True).stdout.splitlines()
    return lines[0], [float(line.split()[1]) for line in lines[1:]]


# ---- the page -----------------------------------------------------------------------------------

def open_view(page, server, view, prefix=""):
    page.open("about:blank")
    page.open(f"{server.url}{prefix}/#/{view}")
    return check(bool(page.until(LIVE)), f"{view.split('/')[0]}: it loads",
                 page.js("(document.body || {}).innerText || ''")[:500])


def clean(page, server):
    # A download that was asked for is not part of the page.
    errors = [e for e in page.errors if "/download/" not in e]
    check(errors == [], "no error in the console", f"{errors}")
    foreign = [u for u in page.requests if not u.startswith((server.url, "about:", "blob:"))]
    check(page.requests and not foreign, "no request to another place", f"{foreign}")
    check(page.js("typeof window.hacked") == "undefined", "no text of a user was run")
    check(page.js("window.violations") == [], "the policy was not violated",
          f"{page.js('window.violations')}")


def accessible(page, name):
    """axe-core, run from outside the page's own policy."""
    page.js(AXE_SOURCE + ";0")
    found = page.js("axe.run(document, { resultTypes: ['violations'] }).then(r => r.violations.map("
                    "v => v.id + ': ' + v.help + ' ' + v.nodes.map(n => n.html).join(' | ').slice(0, 400)))")
    check(found == [], f"{name}: axe-core finds nothing", f"{found}")


def fits(page, name):
    wide = page.js("document.documentElement.scrollWidth - innerWidth")
    check(wide <= 0, f"{name}: nothing scrolls sideways", f"{wide} px too wide")


def pictures(page, server, view, name, ready="true", act=None):
    """The view at three widths, light and dark: it fits, is accessible, and is kept."""
    os.makedirs(SHOTS, exist_ok=True)
    for width in (360, 1280, 2560):
        page.size(width, 900, "light")
        open_view(page, server, view)
        page.until(ready)
        if act:
            act()
        fits(page, f"{name} at {width} px")
        for theme in ("light", "dark"):
            page.size(width, 900, theme)
            accessible(page, f"{name} at {width} px, {theme}")
            page.js("window.scrollTo(0, 0)")
            path = os.path.join(SHOTS, f"{name}-{width}-{theme}.png")
            page.screenshot(path, height=900 if width < 2560 else 1200,
                            scale={360: 1, 1280: 0.6, 2560: 0.4}[width])
            size = os.path.getsize(path)
            check(size < 100000, f"{name} at {width} px, {theme}: a small picture", f"{size}")
    page.size(1280)


def hover_value(page, selector, fraction):
    """What the pointer reads at a place of a plot."""
    box = page.js(f"(r => [r.left, r.top, r.width, r.height])(document.querySelector('{selector}')"
                  ".getBoundingClientRect())")
    left = 58  # of the drawing, see plot.js
    page.mouse("mouseMoved", box[0] + left + (box[2] - left - 12) * fraction, box[1] + box[3] / 2)
    return page.js("document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText")


def shown(value):
    """A number as the page writes it."""
    if 0.001 <= abs(value) < 1000:
        return f"{value:.4f}"
    digits, exponent = f"{value:.3e}".split("e")
    return f"{digits}e{int(exponent)}"


def runs_view(page, server, run, losses, steps):
    open_view(page, server, "runs")
    row = page.until(f"(r => r && r.innerText)({ROWS}.find(r => r.dataset.run === '{run}'"
                     f" && r.innerText.includes('{steps:,}')))")
    check(bool(row), f"the run has {steps} steps", page.js("document.body.innerText")[:800])
    check(shown(losses[-1]) in (row or ""), "its loss is the program's",
          f"{losses[-1]} in {row}")
    text = hover_value(page, ".plot svg", 1.0)
    check(shown(losses[-1]) in text and f"{steps:,}" in text,
          "the pointer reads the last loss", f"{losses[-1]} in {text}")
    check(page.js(f"document.querySelectorAll('.runs img, .runs script, u').length") == 0,
          "markup in texts makes no element")


def zoom_reads_exact_values(page, server, run, losses):
    """Any step of a long run can be looked at, as it was."""
    open_view(page, server, "runs")
    page.until("!!document.querySelector('.plot path.k0')")
    box = page.js("(r => [r.left, r.top, r.width])(document.querySelector('.plot svg')"
                  ".getBoundingClientRect())")
    x = [box[0] + 58 + (box[2] - 70) * f for f in (0.500, 0.512)]
    page.mouse("mouseMoved", x[0], box[1] + 60)
    page.mouse("mousePressed", x[0], box[1] + 60, buttons=1, clicks=1)
    page.mouse("mouseMoved", (x[0] + x[1]) / 2, box[1] + 60, buttons=1)
    page.mouse("mouseMoved", x[1], box[1] + 60, buttons=1)
    page.mouse("mouseReleased", x[1], box[1] + 60, clicks=1)
    check(bool(page.until("[...document.querySelectorAll('button')].some(b =>"
                          " b.textContent === 'Show everything' && !b.hidden)")),
          "a part of the plot is chosen with the pointer")
    page.until("runsView.data.values().next().value.metrics.loss.counts === undefined")
    text = hover_value(page, ".plot svg", 0.5)
    step = int(text.split("\n")[0].replace("Step", "").replace(",", "").strip() or 0)
    want = losses[step - 1] if 0 < step <= len(losses) else 1e99
    check(shown(want) in text and " to " not in text,
          "inside it every step has its own value", f"step {step}: {want} in {text}")


def keyboard(page, server, run):
    """From the top of the page to the values of a plot, without a pointer."""
    open_view(page, server, "runs")
    page.until(ROWS + ".length")
    page.js("document.activeElement.blur()")
    for _ in range(60):
        page.press("Tab")
        if page.js("document.activeElement.closest('.plot') !== null"):
            break
    check(page.js("document.activeElement.closest('.plot') !== null"), "Tab reaches the plot")
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    said = page.js("document.getElementById('live').textContent")
    check("Step" in said and any(c.isdigit() for c in said), "arrow keys read its values", said)
    for key in ("+", "0"):
        page.press(key)
    for _ in range(60):
        page.press("Tab")
        if page.js(f"document.activeElement.dataset.focus === 'a{run}'"):
            break
    check(page.js(f"document.activeElement.dataset.focus === 'a{run}'"), "Tab reaches the run")
    page.press("Enter")
    check(bool(page.until("document.querySelectorAll('[data-metric]').length > 5")),
          "Enter opens it", page.js("location.href"))
    seen = page.js("getComputedStyle(document.querySelector('a')).outlineStyle")
    check(seen is not None, "focus is visible where it is")


def compare(page, server, other, losses):
    open_view(page, server, "runs")
    page.until(f"document.querySelectorAll('.plot g path').length === 2")
    text = hover_value(page, ".plot svg", 0.02)
    check(HOSTILE in text and len(text.split("\n")) >= 3, "two runs are compared at one step", text)
    page.js("document.getElementById('log').click()")
    first = page.js("document.querySelector('.plot g path').getAttribute('d')")
    page.js("(s => { s.value = 0.9; s.dispatchEvent(new Event('input')) })"
            "(document.getElementById('smooth'))")
    check(page.js("document.querySelectorAll('.plot path.raw').length") == 2
          and page.js("document.querySelector('.plot g path:not(.raw)').getAttribute('d')") != first,
          "smoothing draws a calmer line over the values")
    page.js("(s => { s.value = 'elapsed'; s.dispatchEvent(new Event('change')) })"
            "(document.getElementById('xaxis'))")
    check("Time since" in page.js("document.querySelector('.plot .title').textContent"),
          "the axis can be time")
    page.js("(f => { f.value = 'no such run'; f.dispatchEvent(new Event('input')) })"
            "(document.getElementById('filter'))")
    check(page.js(ROWS + ".length") == 0, "a filter that matches nothing hides all")
    page.js("(f => { f.value = 'img onerror'; f.dispatchEvent(new Event('input')) })"
            "(document.getElementById('filter'))")
    check(page.js(ROWS + ".length") == 1, "a filter finds words of the name")
    page.js("(f => { f.value = ''; f.dispatchEvent(new Event('input')) })"
            "(document.getElementById('filter'));"
            "[...document.querySelectorAll('th button')].find(b => b.textContent === 'Step').click()")
    steps = page.js(ROWS + ".map(r => +r.children[4].innerText.split('/')[0].replace(/,/g, ''))")
    check(steps == sorted(steps, reverse=True) and len(steps) > 1, "the list is sorted", f"{steps}")


def run_view(page, server, run, losses):
    open_view(page, server, "run/" + urllib.parse.quote(run, safe=""))
    page.until("document.querySelectorAll('[data-metric]').length > 8")
    sections = page.js("[...document.querySelectorAll('.section')].map(e => [e.querySelector('h2').textContent,"
                       " [...e.querySelectorAll('[data-metric]')].map(c => c.dataset.metric)])")
    check(sections[0][0] == "Main" and sections[0][1][0] == "loss" and "reward" in sections[0][1]
          and sections[-1][0] == "Details", "what matters most comes first", f"{sections}")
    page.js("document.querySelector('.section:last-child summary').focus()")
    page.press("Enter")
    check(not page.js("document.querySelector('.section:last-child').open"), "a section is folded by a key")
    page.press("Enter")
    value = page.js("document.querySelector('[data-metric=loss] h3 .num').textContent")
    check(value == shown(losses[-1]), "the page of a run shows the program's loss",
          f"{value} {losses[-1]}")
    names = page.js("[...document.querySelectorAll('[data-metric]')].map(e => e.dataset.metric)")
    for name in ("learning_rate:mean", "grad_norm:mean", "reward", HOSTILE):
        check(name in names, f"{name[:20]} has a plot", f"{names}")
    body = page.js("document.getElementById('main').innerText")
    for words in ("LoRA, rank 4", "once upon", "for sampling", "training state", run):
        check(words in body, f"it tells: {words}", body[:1500])
    page.js("(n => { n.value = 'renamed <b>'; n.dispatchEvent(new Event('change')) })"
            "(document.getElementById('name'))")
    check(bool(page.until("document.querySelector('h1').textContent === 'renamed <b>'")),
          "it can be given a name")
    # Deleting asks first.
    button = "[...document.querySelectorAll('button')].find(b => b.ariaLabel === 'Delete second')"
    page.js(button + ".click()")
    check(bool(page.until("!!document.querySelector('dialog[open]')")), "deleting asks first")
    accessible(page, "the question")
    page.press("Escape")
    check(bool(page.until("!document.querySelector('dialog')")) and page.js(f"!!({button})"),
          "Escape deletes nothing")
    page.js(button + ".click()")
    page.until("!!document.querySelector('dialog[open]')")
    page.js("document.querySelector('dialog .danger').click()")
    check(bool(page.until(f"!({button})")), "then the checkpoint is gone")
    page.js("[...document.querySelectorAll('button')].find(b => b.ariaLabel === 'Publish first')"
            ".click()")
    page.until("!!document.querySelector('dialog[open]')")
    page.js("document.querySelector('dialog .danger').click()")
    check(bool(page.until("[...document.querySelectorAll('button')].some(b =>"
                          " b.ariaLabel === 'Unpublish first')")), "a checkpoint is published")
    page.js("[...document.querySelectorAll('button')].find(b => b.ariaLabel === 'Download first')"
            ".click()")
    check(bool(page.until("performance.getEntriesByType('resource').some(e =>"
                          " e.name.includes('/archive'))")), "a checkpoint can be downloaded")


def ask(page, text, tokens):
    page.js(f"(e => {{ e.value = {tokens}; e.dispatchEvent(new Event('input')) }})"
            "(document.getElementById('set-max_tokens'))")
    page.js("document.getElementById('prompt').focus()")
    page.type(text)
    page.press("Enter", modifiers=2)


def chat_view(page, server, path):
    open_view(page, server, "chat/" + urllib.parse.quote(path, safe=""))
    page.until("document.querySelectorAll('#model0 option').length > 1")
    check(page.js("document.getElementById('model0').value") == path, "a link chooses the checkpoint")
    page.js("document.getElementById('colors').click(); document.getElementById('compare').click()")
    page.js("(s => { s.value = 'tinker/tiny';"
            " s.dispatchEvent(new Event('change')) })(document.getElementById('model1'))")
    seed = "(e => {{ e.value = '{}'; e.dispatchEvent(new Event('input')) }})(document.getElementById('set-seed'))"
    page.js(seed.format(4))  # the same answers each time: a random one may be too short to look at
    ask(page, "Tell me a story. " + HOSTILE, 40)
    done_text = "[...document.querySelectorAll('.turn:not(.user) .who:last-child')].map(e => e.innerText)"
    check(bool(page.until(f"(t => t.length === 2 && t.every(x => x.includes('per second')))({done_text})")),
          "two models answer the same prompt", f"{page.js(done_text)}")
    check(page.js("document.querySelectorAll('.turn .t').length") > 5, "each token is marked")
    text = page.js("[...document.querySelectorAll('.turn:not(.user) > .body')].map(e => e.innerText)")
    check(len(text) == 2 and all(text), "there is text", f"{text}")
    page.js("document.querySelectorAll('.turn .t')[3].scrollIntoView({ block: 'center' })")
    spot = page.js("(r => [r.left + r.width / 2, r.top + r.height / 2])"
                   "(document.querySelectorAll('.turn .t')[3].getClientRects()[0])")
    page.mouse("mouseMoved", *spot)
    tip = page.js("document.getElementById('tip').innerText")
    check("%" in tip and len(tip.split("\n")) > 3, "a token tells its probability and others'", tip)
    page.js(seed.format(""))
    # Texts to stop at, and other settings, reach the sampler.
    page.js("document.getElementById('compare').click();"
            "(e => { e.value = 'e\\n.'; e.dispatchEvent(new Event('input')) })(document.getElementById('stops'))")
    ask(page, "Tell me a story.", 40)
    page.until("document.getElementById('stop').disabled")
    text = page.js("document.querySelector('.turn:last-child > .body').innerText")
    check("e" not in text and "." not in text, "an answer ends at the texts to stop at", text)
    page.js("(e => { e.value = ''; e.dispatchEvent(new Event('input')) })(document.getElementById('stops'));"
            "document.getElementById('compare').click()")
    # Another answer to the same question takes the place of the last one.
    turns = page.js("chatView.panes[0].turns.length")
    page.js("[...document.querySelectorAll('.turn:last-child button')].find(b => b.textContent === 'Try again').click()")
    page.until("!document.getElementById('stop').disabled", 5)
    page.until("document.getElementById('stop').disabled")
    check(page.js("chatView.panes[0].turns.length") == turns, "an answer can be tried again")
    # Stop: a long answer ends at once, and the server's work with it.
    page.js("document.getElementById('compare').click();"
            "document.getElementById('plain').click();"  # and so hot that it does not end by itself
            "for (const [id, value] of [['model0', 'tinker/tiny'], ['set-temperature', 2]])"
            " (e => { e.value = value; e.dispatchEvent(new Event(id === 'model0' ? 'change' : 'input')) })"
            "(document.getElementById(id));"
            "const whole = events; events = async function* (r) {"  # at its first token
            " for await (const e of whole(r)) { yield e; document.getElementById('stop').click(); } };0")
    last = "document.querySelector('.turn:last-child').innerText"
    for _ in range(5):  # a model may still be done with its first words
        ask(page, "And another one.", 400)
        page.until("document.getElementById('stop').disabled")
        if "Stopped" in page.js(last):
            break
    check("Stopped" in page.js(last), "an answer can be stopped", page.js(last))
    # What is saved is what `tinker train sft` reads.
    page.js("window.saved = null; saveFile = (name, type, text) => { window.saved = text; };"
            "document.getElementById('save').click()")
    rows = [json.loads(line) for line in (page.js("window.saved") or "").splitlines()]
    check(len(rows) == 1 and [m["role"] for m in rows[0]["messages"]][:2] == ["user", "assistant"]
          and HOSTILE in rows[0]["messages"][0]["content"], "a conversation is saved as JSONL",
          f"{rows}")
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(page.js("window.saved"))
        file.flush()
        checked = subprocess.run([os.path.join(BUILD, "tinker"), "train", "sft", "--data", file.name, "--dry-run",
                                  "-m", "tinker/tiny", "--tokenizer", "models/tiny"],
                                 env=dict(os.environ, TINKER_BASE_URL=server.url, TINKER_API_KEY="tml-dummy"),
                                 capture_output=True, text=True)
        check(checked.returncode == 0 and "1 train" in checked.stderr, "`tinker train sft` reads it",
              checked.stdout + checked.stderr)
    # Thinking is folded.
    page.js("""(a => { a.add('<think>hidden thoughts</think>the answer', []); a.draw();
               window.folded = [a.fold.hidden, a.thinking.innerText || a.thinking.textContent,
                                a.body.textContent]; })(new Answer())""")
    check(page.js("window.folded") == [False, "hidden thoughts", "the answer"], "thinking is folded",
          f"{page.js('window.folded')}")


def system_view(page, server):
    open_view(page, server, "system")
    text = page.until("(t => /Generated tokens\\/s\\s+[0-9]/.test(t) && t)"
                      "(document.getElementById('main').innerText)")
    for word in ("Memory", "Loaded in", "Weights in memory", "Adapters in training", "prompts kept for reuse", "Training requests waiting", "Threads",
                 "Disk free", "prefix cache", "has no saved checkpoint"):
        check(word in (text or ""), f"the system view tells: {word}", f"{text}")
    check("poll" not in (text or ""), "in words that people know")


def log_steps(server, run, first, count, metrics=12, batch=1000):
    """What a program logs in so many steps, from step `first` on."""
    path = urllib.parse.quote(run, safe="")
    for start in range(first, first + count, batch):
        http(server, "POST", f"/api/v1/training_runs/{path}/metrics",
             [{"step": step, "metrics": {f"own/{k}": (step * (k + 7) % 1000) / 10 for k in range(metrics)}}
              for step in range(start, min(start + batch, first + count))])


def script_cost(page, script):
    """Milliseconds of processor time that a script takes, whatever else the machine does."""
    page.call("Performance.enable", timeDomain="threadTicks")

    def spent():
        metrics = page.call("Performance.getMetrics")["metrics"]
        return 1000 * sum(m["value"] for m in metrics if m["name"] in
                          ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration"))

    best = 1e9
    for _ in range(3):
        before = spent()
        page.js("new Promise(done => requestAnimationFrame(() => { " + script + "; done(1); }))")
        best = min(best, spent() - before)
    page.call("Performance.disable")
    return best


def script_time(page, server, run):
    """Drawing all metrics of a run of 100,000 steps."""
    log_steps(server, run, 1, 100000)
    open_view(page, server, "run/" + urllib.parse.quote(run, safe=""))
    check(page.until("document.querySelectorAll('[data-metric] path').length > 20"),
          "a run of 100,000 steps and more than 20 metrics is drawn")
    ms = script_cost(page, "for (const p of runView.plots.values()) p.plot.near = true; runView.drawAll()")
    print(f"# figure: drawing all plots of a run takes {ms:.0f} ms of script")
    check(5 < ms < 200, "all its plots are drawn in less than 200 ms of script", f"{ms}")
    page.js("location.hash = '#/runs'")
    page.until("!!document.querySelector('.plot path')")
    ms = script_cost(page, "runsView.draw(); runsView.drawTable()")
    print(f"# figure: drawing the list and its plot takes {ms:.0f} ms of script")
    check(ms < 200, "the list and its plot are drawn in less than 200 ms of script", f"{ms}")


def many_runs(page, server):
    """More runs than the list shows at first: what orders or filters it looks at all of them."""
    service = tinker.ServiceClient()
    first = [service.create_lora_training_client(base_model=f"tinker/{STORY}", rank=1,
                                                 user_metadata={"number": f"n{i}"})
             for i in range(51)][0].get_info().model_id
    http(server, "PUT", f"/api/v1/training_runs/{urllib.parse.quote(first, safe='')}/note",
         {"name": "!oldest"})
    open_view(page, server, "runs")
    page.until(ROWS + ".length === 50")
    page.js("[...document.querySelectorAll('th button')].find(b => b.textContent === 'Run').click()")
    check(bool(page.until(ROWS + ".length > 51 && " + ROWS + "[0].innerText.includes('!oldest')")),
          "an order looks at all runs", page.js(ROWS + ".length"))
    ms = script_cost(page, "runsView.drawTable()")
    print(f"# figure: drawing a list of {page.js(ROWS + '.length')} runs takes {ms:.0f} ms of script")
    page.js("(f => { f.value = 'n17'; f.dispatchEvent(new Event('input')) })(document.getElementById('filter'))")
    check(page.js(ROWS + ".length") == 1, "metadata is found by a filter")
    # What is compared stands in the address, and is there again when it is opened.
    page.js(ROWS + "[0].querySelector('input').click()")
    address = page.js("location.hash")
    page.open("about:blank")
    page.open(server.url + "/" + address)
    page.until(LIVE)
    chosen = page.js("[...runsView.chosen]")
    check(len(chosen) >= 1 and all(urllib.parse.quote(c, safe="") in address for c in chosen),
          "the address names the compared runs", f"{address} {chosen}")
    clean(page, server)


def without_server(page, server):
    """A server that goes, comes back, is slow, or has no such run: the page says so, and recovers."""
    open_view(page, server, "runs")
    server.stop()
    check(bool(page.until("document.getElementById('link').textContent === 'Not connected'")),
          "a server that has gone is told", page.js("document.getElementById('link').textContent"))
    check("does not answer" in page.js("document.getElementById('error').innerText"), "in words")
    check(page.js(ROWS + ".length") > 0, "what was there stays readable")
    server.start()
    check(bool(page.until(LIVE + " && document.getElementById('error').hidden")),
          "when it is back, the page goes on by itself")
    page.open("about:blank")
    page.open(server.url + "/#/run/no-such-run")
    check(bool(page.until("!!document.querySelector('#wait a')")) and "not found" in
          page.js("document.getElementById('error').innerText")
          and not page.js("document.getElementById('main').innerText.includes('Checkpoints')"),
          "a run that does not exist is told, with a way back")
    open_view(page, server, "runs")
    page.call("Network.emulateNetworkConditions", offline=False, latency=6000,
              downloadThroughput=-1, uploadThroughput=-1)
    page.js("location.hash = '#/system'")
    check(page.js("document.getElementById('main').innerText") == "Loading…", "a slow answer is waited for")
    check(bool(page.until("document.getElementById('link').textContent.startsWith('Waiting')")),
          "and if it takes long, that is told")
    page.call("Network.emulateNetworkConditions", offline=False, latency=0,
              downloadThroughput=-1, uploadThroughput=-1)
    check(bool(page.until(LIVE)), "until it comes")


# ---- the servers --------------------------------------------------------------------------------

def without_key(page):
    # The name of a model is the operator's, but a page must not trust even that.
    name = "<u>model</u>"
    with Server("--model", f"{name}={os.path.abspath('models/tiny')}", "--autosave", "500") as server:
        run, losses = train_long(name)
        runs_view(page, server, run, losses, STEPS)
        zoom_reads_exact_values(page, server, run, losses)
        clean(page, server)
        # The same after a restart.
        server.stop()
        server.start()
        runs_view(page, server, run, losses, STEPS)
        zoom_reads_exact_values(page, server, run, losses)
        training, _ = train(tinker.ServiceClient(), name, 2)
        script_time(page, server, training.get_info().model_id)
        clean(page, server)
        without_server(page, server)


def with_names(page):
    with Server("--model", f"tinker/{STORY}={os.path.abspath('models/tiny')}") as server:
        service = tinker.ServiceClient()
        training, losses = train(service, f"tinker/{STORY}", 60, lr=0.002, **{"topic": HOSTILE})
        run = training.get_info().model_id
        other, _ = train(service, f"tinker/{STORY}", 40, lr=0.0005)
        path = urllib.parse.quote(run, safe="")
        http(server, "PUT", f"/api/v1/training_runs/{path}/note",
             {"name": HOSTILE, "notes": HOSTILE, "planned_steps": 100})
        http(server, "POST", f"/api/v1/training_runs/{path}/metrics",
             [{"step": 10, "metrics": {"reward": 0.25, HOSTILE: 1.0}},
              {"step": 20, "metrics": {"reward": 0.5, HOSTILE: 2.0},
               "texts": [{"prompt": HOSTILE, "text": "once upon " + HOSTILE, "label": HOSTILE}]}])
        first = training.save_weights_for_sampler("first").result().path
        training.save_state("second").result()
        compare(page, server, other.get_info().model_id, losses)
        keyboard(page, server, run)
        run_view(page, server, run, losses)
        clean(page, server)
        chat_view(page, server, first)
        system_view(page, server)
        clean(page, server)
        many_runs(page, server)


def train_island(server, name, lr, rank, steps):
    """A run of `tinker train sft` as the quickstart does it, in 329 steps, or fewer; its id."""
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([os.path.join(BUILD, "tinker"), "train", "sft", "-m", f"tinker/{STORY}", "--name", name,
                        "--data", "examples/data/island.jsonl", "--test-data", "examples/data/island-test.jsonl",
                        "--epochs", "7", "--batch-size", "16", "--eval-every", "47", "--sample-every", "94",
                        "--sample-prompts", "examples/data/island-test.jsonl", "--save-every", "0",
                        "--max-steps", str(steps), "--lr", lr, "--rank", rank, "--overwrite", "--out", out],
                       check=True, capture_output=True, timeout=800,
                       env={**os.environ, "TINKER_BASE_URL": server.url, "TINKER_API_KEY": "tml-dummy"})
    with urllib.request.urlopen(server.url + "/api/v1/training_run_summaries") as answer:
        run = next(r["id"] for r in json.load(answer)["runs"] if r["name"] == name)
    if steps < 100:  # one that looks as if it went on
        http(server, "PUT", f"/api/v1/training_runs/{urllib.parse.quote(run, safe='')}/note", {"planned_steps": 329})
    return run


def with_pictures(page):
    """Pictures of ordinary work, for the documentation."""
    with Server("--model", f"tinker/{STORY}={os.path.abspath('models/tiny')}", own_models=False) as server:
        for name, lr, rank, steps in (("island, rate 5e-4", "5e-4", "32", 120), ("island, rank 4", "2e-3", "4", 80),
                                      ("island", "2e-3", "32", 329)):
            run = train_island(server, name, lr, rank, steps)
        pictures(page, server, "runs", "runs", "document.querySelectorAll('.plot g path').length > 2")
        pictures(page, server, "run/" + urllib.parse.quote(run, safe=""), "run",
                 "document.querySelectorAll('[data-metric] path').length > 8")
        pictures(page, server, "chat", "chat", "document.querySelectorAll('#model0 option').length > 1",
                 lambda: talk(page))
        pictures(page, server, "system", "system",
                 "/Generated tokens\\/s\\s+[0-9]/.test(document.getElementById('main').innerText)")
        clean(page, server)


def talk(page):
    """A short conversation with two models."""
    page.js("for (const id of ['compare', 'colors']) if (!document.getElementById(id).checked)"
            " document.getElementById(id).click();"
            "for (const [id, want] of [['model0', o => o.value === 'tinker/tiny'],"
            " ['model1', o => o.text.startsWith('island /')]])"
            " (s => { s.value = [...s.options].find(want).value; s.dispatchEvent(new Event('change')) })"
            "(document.getElementById(id));"
            "document.getElementById('set-temperature').value = 0.3;"
            "document.getElementById('set-temperature').dispatchEvent(new Event('input'));"
            "document.getElementById('set-seed').value = 4;"
            "document.getElementById('set-seed').dispatchEvent(new Event('input'))")
    ask(page, "Where does Sela live?", 48)
    page.until("(t => t.length === 2 && t.every(x => x.includes('per second')))"
               "([...document.querySelectorAll('.turn:not(.user) .who:last-child')].map(e => e.innerText))")


def small():
    files = [f for f in pathlib.Path("src/server/page").iterdir() if f.suffix != ".h"]
    size = sum(f.stat().st_size for f in files)
    print(f"# figure: the page takes {size} bytes")
    return size <= 100_000


def with_key_and_prefix(page):
    with Server("--api-key", "tml-secret-1", "--path-prefix", "/lab/tinker") as server:
        page.size(1280)
        page.open(server.url)
        check(bool(page.until("!!document.getElementById('apikey')")), "a key is asked for")
        check(page.js("location.pathname") == "/lab/tinker/", "the address becomes a folder")
        accessible(page, "the sign-in")
        check("Runs" not in page.js("document.getElementById('main').innerText")
              or page.js(ROWS + ".length") == 0, "nothing is shown without it")
        page.js("document.getElementById('apikey').focus()")
        page.type("tml-wrong")
        page.press("Enter")
        check("Invalid API key" in (page.until("(d => d && d.innerText.includes('Invalid') && d.innerText)"
                                               "(document.querySelector('dialog'))") or ""),
              "a wrong key is named as such")
        page.js("document.getElementById('apikey').focus()")
        page.type("tml-secret-1")
        page.press("Enter")
        check(bool(page.until(LIVE)), "with the right one it is live")
        stored = page.js("JSON.stringify([localStorage.length, sessionStorage.length, document.cookie])")
        check(stored == '[0,0,""]', "the key is stored nowhere", stored)
        page.errors = [e for e in page.errors if "401" not in e]  # the wrong key, and none
        clean(page, server)
        page.js("document.getElementById('signout').click()")
        check(bool(page.until("!!document.getElementById('apikey')")), "one can sign out")


with Browser() as page:
    page.size(1280)
    page.call("Page.addScriptToEvaluateOnNewDocument", source="window.violations = [];"
              "addEventListener('securitypolicyviolation', e => window.violations.push("
              "e.violatedDirective + ' ' + e.blockedURI));")
    attempt("the page takes at most 100 KB", small)
    attempt("a key and a prefix", lambda: with_key_and_prefix(page))
    attempt("names, notes, chat", lambda: with_names(page))
    attempt("a long run", lambda: without_key(page))
    attempt("pictures", lambda: with_pictures(page))
done()
