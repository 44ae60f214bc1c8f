/* run.js - one run: all its metrics, settings, checkpoints and the texts it made. */

const MAIN_METRICS = ["loss", "forward/loss", "learning_rate:mean", "grad_norm:mean"];
/* What a program calls its reward: "reward", "env/all/reward/total", "reward/mean". */
const isReward = name => /(^|\/)reward(\/(total|mean))?$/.test(name);

/* The section of a metric: what matters most, what the program logged by the first part of its name, what the server measures. */
function sectionOf(name) {
  if (MAIN_METRICS.includes(name) || isReward(name)) return "Main";
  if (METRIC_NAMES[name] || /:(sum|mean|min|max)$/.test(name)) return "Details";
  return name.includes("/") ? name.slice(0, name.indexOf("/")) || "Logged" : "Logged";
}
const SECTIONS = ["Main", "Logged", "test"]; /* first, in this order; "Details" last */

const STATE_NOTES = {
  stopped: "Its program ended before the last step. Continue from a checkpoint, if one was saved.",
  lost: "It was lost in a restart of the server. Continue from a checkpoint.",
  idle: "Its program has been quiet for a while.",
};

const runView = {
  title: "Run",

  mount(root, id) {
    this.id = id;
    this.plots = new Map();
    this.sections = new Map();
    this.metrics = {};
    this.savedState = "";
    this.filter = "";
    this.step = this.checkpoints = -1;
    this.name = h("h1", {}, shortId(id));
    this.tiles = h("div", { class: "tiles" });
    this.why = h("p", { class: "dim", hidden: true });
    this.grid = h("div", {});
    this.noMetrics = h("p", { class: "card empty" }, "No metrics yet. They appear with the first pass.");
    this.settings = h("dl");
    this.saved = h("tbody");
    this.texts = h("div", { class: "texts", tabindex: "0", role: "region", "aria-label": "Samples over time" });
    this.textCard = h("section", { class: "card full", hidden: true }, h("h2", {}, "Samples over time"), this.texts);
    this.editName = h("input", { type: "text", id: "name", maxlength: 200, onchange: e => this.note({ name: e.target.value }) });
    this.editNotes = h("textarea", { class: "note", id: "notes", maxlength: 16000, onchange: e => this.note({ notes: e.target.value }) });
    this.noCheckpoints = h("p", { class: "dim" }, "None saved yet. What the run has learned is lost when its program ends, unless it saves.");
    this.savedTable = h("table", { class: "stacked" }, h("caption", { class: "hide" }, "Checkpoints"),
      h("thead", {}, h("tr", {}, ...["Checkpoint", "Kind", "Size", "Saved", "Actions"].map((t, i) => h("th", { scope: "col", class: i === 2 && "num" }, t)))), this.saved);
    root.append(h("p", {}, h("a", { href: "#/runs" }, "← All runs")), this.name, this.why, this.tiles,
      h("div", { class: "row" }, ...lookControls(() => this.drawAll()),
        h("label", {}, "Metrics", h("input", { type: "search", placeholder: "all", oninput: e => { this.filter = e.target.value.toLowerCase(); this.drawAll(); } })),
        h("span", { class: "grow" }),
        h("button", { type: "button", onclick: () => this.download("csv") }, "Download CSV"),
        h("button", { type: "button", onclick: () => this.download("json") }, "Download JSON")),
      this.grid, this.noMetrics,
      h("div", { class: "split" },
        h("section", { class: "card full" }, h("h2", {}, "Checkpoints"), this.noCheckpoints, this.savedTable),
        h("section", { class: "card" }, h("h2", {}, "Settings"), this.settings),
        h("section", { class: "card fields" }, h("h2", {}, "Name and notes"), h("label", {}, "Name", this.editName), h("label", {}, "Notes", this.editNotes)),
        this.textCard));
  },

  async refresh() {
    const id = this.id, s = await get(API + "training_run_summaries?id=" + encodeURIComponent(id)), r = s.runs[0];
    if (id !== this.id) return; /* another run was opened meanwhile */
    this.run = r;
    this.now = s.now;
    this.drawHead();
    if (this.step !== r.step || this.loss !== r.loss || this.count !== r.metrics.length) {
      /* A point and a half per pixel of the usual width. */
      const { metrics } = await get(runPath(id, "/metrics?max_points=600"));
      if (id !== this.id) return;
      this.metrics = metrics;
      this.step = r.step;
      this.loss = r.loss;
      this.count = r.metrics.length;
      reveal();
      this.drawAll();
      this.drawHead();
      await this.loadTexts(id);
    }
    await this.loadCheckpoints(id);
  },

  last(name) {
    const m = this.metrics[name];
    return m && m.values.length ? m.values[m.values.length - 1] : null;
  },

  drawHead() {
    const r = this.run, tile = (label, value) => h("div", { class: "tile" }, h("span", {}, label), h("b", {}, value));
    this.name.textContent = runName(r);
    setTitle(runName(r));
    const reward = Object.keys(this.metrics).find(isReward);
    this.why.hidden = !STATE_NOTES[r.state];
    this.why.textContent = STATE_NOTES[r.state] || "";
    this.tiles.replaceChildren(...[h("div", { class: "tile" }, h("span", {}, "State"), h("b", { class: "state " + r.state }, r.state)), tile("Step", count(r.step) + (r.planned_steps ? " / " + count(r.planned_steps) : "")), tile("Loss", lossText(r)), reward && tile("Reward", number(this.last(reward))),
      tile("Learning rate", metricValue("learning_rate:mean", this.last("learning_rate:mean"))), tile("Gradient norm", number(this.last("grad_norm:mean"))),
      tile("Tokens/s", r.tokens_per_second ? count(r.tokens_per_second) : dash), tile("Tokens trained", count(r.tokens)), r.planned_steps > r.step && tile("Time left", duration(r.seconds_left))].filter(Boolean));
    if (document.activeElement !== this.editName) this.editName.value = r.name || "";
    if (document.activeElement !== this.editNotes) this.editNotes.value = r.notes || "";
    const parts = [r.train_attn && "attention", r.train_mlp && "MLP", r.train_unembed && "output layer"].filter(Boolean).join(", ");
    const rows = [["Run ID", r.id], ["Base model", r.base_model], ["Adapter", r.rank ? "LoRA, rank " + r.rank : "all parameters"], ["Trained parts", parts], ["Seed", String(r.seed)],
      ["Started", clockTime(r.created)], ["Last request", ago(r.last_request, this.now)], ...Object.entries(r.user_metadata)];
    this.settings.replaceChildren(...rows.flatMap(([k, v]) => [h("dt", {}, k), h("dd", { class: k === "Run ID" && "mono" }, v)]));
  },

  /* One plot per metric, the usual ones first; plots stay, so that a zoom does. */
  drawAll() {
    const names = Object.keys(this.metrics).filter(n => n !== "time" && (!this.filter || (n + " " + metricName(n)).toLowerCase().includes(this.filter)));
    const rank = n => isReward(n) ? 2.5 : MAIN_METRICS.indexOf(n) + 1 || 99;
    names.sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
    for (const n of names) {
      const m = this.metrics[n];
      if (!this.plots.has(n)) {
        const value = h("span", { class: "num" }), plot = new Plot({ title: metricName(n), height: 200, onzoom: view => this.onZoom(n, view) });
        this.plots.set(n, { plot, value, card: h("section", { class: "card", "data-metric": n }, h("h3", {}, h("span", {}, metricName(n)), value), plot.el) });
      }
    }
    const groups = new Map();
    for (const n of names) groups.set(sectionOf(n), [...groups.get(sectionOf(n)) || [], n]);
    const place = g => SECTIONS.indexOf(g) + 1 || (g === "Details" ? 99 : 50);
    const order = [...groups.keys()].sort((a, b) => place(a) - place(b) || (a < b ? -1 : 1));
    fill(this.grid, order.map(g => this.section(g, groups.get(g).map(n => this.plots.get(n).card))));
    this.noMetrics.hidden = names.length > 0;
    if (this.filter) this.noMetrics.textContent = "No metric matches.";
    for (const n of names) this.drawOne(n);
  },

  section(name, cards) {
    if (!this.sections.has(name)) {
      const size = h("span", { class: "dim" }), plots = h("div", { class: "plots" });
      this.sections.set(name, { size, plots, el: h("details", { class: "section", open: true }, h("summary", {}, h("h2", {}, name), size), plots) });
    }
    const s = this.sections.get(name);
    s.size.textContent = cards.length;
    fill(s.plots, cards);
    return s.el;
  },

  drawOne(n) {
    const p = this.plots.get(n), m = p.detail || this.metrics[n];
    p.value.textContent = metricValue(n, this.last(n));
    p.plot.set([{ name: metricName(n), k: 0, x: placePoints(m, this.metrics.time, look.x), values: m.values, min: m.min, max: m.max, counts: m.counts }], plotOptions());
  },

  /* A part of a long run is asked for again, with all its points. */
  onZoom(n, view) {
    const p = this.plots.get(n);
    p.detail = null;
    clearTimeout(p.timer);
    if (!view || look.x !== "step") return this.drawOne(n);
    p.timer = setTimeout(async () => {
      try {
        const q = "/metrics?max_points=1500&names=" + encodeURIComponent(n) + "&from=" + Math.max(0, Math.floor(view[0]) - 1) + "&to=" + Math.max(0, Math.ceil(view[1]) + 1);
        p.detail = (await get(runPath(this.id, q))).metrics[n] || null;
        this.drawOne(n);
      } catch (e) { showError(e); }
    }, 250);
  },

  async note(change) {
    try {
      await send(runPath(this.id, "/note"), { method: "PUT", body: change });
      say("Saved");
      refreshNow();
    } catch (e) { showError(e); }
  },

  async download(format) {
    try {
      const r = await send(runPath(this.id, "/metrics?format=" + format));
      saveFile(this.id.replace(/[^\w-]+/g, "-") + "." + format, r.headers.get("Content-Type"), await r.text());
    } catch (e) { showError(e); }
  },

  async loadTexts(id) {
    const { texts } = await get(runPath(id, "/texts?limit=100"));
    if (id !== this.id) return;
    this.textCard.hidden = !texts.length;
    this.texts.replaceChildren(...texts.map(t => h("article", {}, h("span", { class: "dim" }, "Step " + count(t.step) + (t.label ? " · " + t.label : "") + " · " + clockTime(t.time)), t.prompt && h("p", { class: "dim" }, t.prompt), h("p", {}, t.text))));
  },

  async loadCheckpoints(id = this.id) {
    const { checkpoints } = await get(runPath(id, "/checkpoints")), state = JSON.stringify(checkpoints);
    if (id !== this.id || state === this.savedState) return;
    this.savedState = state;
    this.noCheckpoints.hidden = checkpoints.length > 0;
    this.savedTable.hidden = !checkpoints.length;
    this.saved.replaceChildren(...checkpoints.map(c => this.checkpointRow(c)));
  },

  checkpointRow(c) {
    const [kind, ...rest] = c.tinker_path.replace(/^tinker:\/\/[^/]*\//, "").split("/"), name = rest.join("/"), path = runPath(this.id, "/checkpoints/" + kind + "/" + encodeURIComponent(name));
    const button = (text, act, cls) => h("button", { type: "button", class: cls, "aria-label": text + " " + name, onclick: act }, text);
    return h("tr", {}, h("td", { class: "wide" }, h("div", {}, h("b", {}, name), h("span", { class: "sub mono" }, c.tinker_path))),
      h("td", { "data-label": "Kind" }, kind === "weights" ? "training state" : kind === "sampler_weights" ? "for sampling" : "external", c.public && h("span", { class: "sub" }, "public")),
      h("td", { "data-label": "Size", class: "num" }, bytes(c.size_bytes)), h("td", { "data-label": "Saved" }, clockTime(Date.parse(c.time) / 1000)),
      h("td", { class: "wide" }, h("div", { class: "row" },
        kind === "sampler_weights" && h("a", { class: "button", href: "#/chat/" + encodeURIComponent(c.tinker_path) }, "Chat"),
        button("Download", () => this.fetchArchive(path)),
        button(c.public ? "Unpublish" : "Publish", () => this.change(path + "/publish", c.public ? "DELETE" : "POST", c.public ? null : ["Publish " + name + "?", "Everybody with a key of this server can then load and sample it.", "Publish"])),
        button("Delete", () => this.change(path, "DELETE", ["Delete " + name + "?", "The weights are removed from the disk. This cannot be undone.", "Delete"]), "danger"))));
  },

  async change(path, method, question) {
    if (question && !await confirmAction(...question)) return;
    try {
      await send(path, { method });
      await this.loadCheckpoints();
      say("Done");
    } catch (e) { showError(e); }
  },

  /* The server answers with a signed link that needs no key: the browser itself downloads from it. */
  async fetchArchive(path) {
    try {
      const r = await send(path + "/archive");
      if (r.body) r.body.cancel();
      h("a", { href: r.url, download: "checkpoint.tar" }).click();
    } catch (e) { showError(e); }
  },
};
