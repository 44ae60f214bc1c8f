/* runs.js - the list of runs, and several of them in one plot. */

/* How plots are drawn; the same in the list and on the page of a run. */
const look = { x: "step", log: false, smooth: 0 };
const LINES = 8;

/* The x of each point: its step, or the time when that step was done, from the series of times. */
function placePoints(m, time, mode) {
  if (mode === "step" || !time || !time.steps.length) return m.steps;
  const start = mode === "elapsed" ? time.values[0] : 0;
  let i = 0;
  return m.steps.map(step => {
    while (i + 1 < time.steps.length && time.steps[i] < step) i++;
    while (i > 0 && time.steps[i] > step) i--;
    return time.values[i] - start;
  });
}

function plotOptions(log = look.log) {
  const o = { log, smooth: look.smooth };
  if (look.x === "elapsed") return { ...o, xLabel: "Time since the first step", xName: "After", xTicks: timeTicks, xText: (v, span) => duration(span > 7200 ? Math.round(v / 60) * 60 : v) };
  if (look.x === "clock")
    return { ...o, xLabel: "Time of day", xName: "At", xTicks: (a, b, n) => timeTicks(a, b, n, new Date(a * 1000).getTimezoneOffset() * 60), xText: (v, span) => new Date(v * 1000).toLocaleString([], span > 172800 ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit", second: span < 600 ? "2-digit" : undefined }) };
  return { ...o, xLabel: "Step", xName: "Step" };
}

/* x axis, scale and smoothing; onchange draws again. */
function lookControls(onchange) {
  const shown = h("output", { class: "num" }, look.smooth.toFixed(2));
  return [
    h("label", {}, "X axis", h("select", { id: "xaxis", onchange: e => { look.x = e.target.value; onchange(true); } },
      ...[["step", "Step"], ["elapsed", "Time since start"], ["clock", "Time of day"]].map(([v, t]) => h("option", { value: v, selected: look.x === v }, t)))),
    h("label", {}, h("input", { type: "checkbox", id: "log", checked: look.log, onchange: e => { look.log = e.target.checked; onchange(); } }), "Log scale"),
    h("label", {}, "Smoothing", h("input", { type: "range", id: "smooth", min: 0, max: 0.99, step: 0.01, value: look.smooth, oninput: e => { look.smooth = +e.target.value; shown.value = look.smooth.toFixed(2); onchange(); } }), shown),
  ];
}

const COLUMNS = [
  { key: "name", label: "Run", text: runName },
  { key: "state", label: "State", text: r => r.state },
  { key: "base_model", label: "Model", text: r => r.base_model },
  { key: "step", label: "Step", num: true },
  { key: "loss", label: "Loss", num: true },
  { key: "tokens_per_second", label: "Tokens/s", num: true },
  { key: "seconds_left", label: "Time left", num: true },
  { key: "created", label: "Started", num: true },
];

const runsView = {
  title: "Runs",
  runs: [], others: new Map(), total: 0, chosen: null, colors: new Map(), data: new Map(),
  sort: { key: "created", down: true }, filter: "", state: "", metric: "loss", limit: 50,

  mount(root, ids) {
    if (ids) this.chosen = new Set(ids.split(",").slice(0, LINES));
    this.table = h("tbody");
    this.heads = COLUMNS.map(c => h("th", { scope: "col", class: c.num && "num" }, h("button", { type: "button", onclick: () => this.sortBy(c.key) }, c.label)));
    this.metrics = h("select", { id: "metric", onchange: e => { this.metric = e.target.value; this.plot.zoom(null); this.load(true); } });
    this.legend = h("ul", { class: "legend", "aria-label": "Runs in the plot" });
    this.plot = new Plot({ title: "Runs compared", height: 320, onzoom: view => this.onZoom(view) });
    this.compare = h("section", { class: "card", "aria-label": "Comparison" },
      h("div", { class: "row" }, h("label", {}, "Metric", this.metrics), ...lookControls(() => this.draw())), this.plot.el, this.legend);
    this.shown = h("span", { class: "dim", role: "status" });
    this.more = h("button", { type: "button", hidden: true, onclick: () => { this.limit += 50; refreshNow(); } }, "Show more");
    this.none = h("p", { class: "dim", hidden: true }, "No run matches.");
    this.list = h("section", { class: "card", "aria-label": "List of runs" },
      h("div", { class: "row" },
        h("label", {}, "Filter", h("input", { type: "search", id: "filter", placeholder: "name, model, note, metadata", value: this.filter, oninput: e => { this.filter = e.target.value; this.filterRuns(); } })),
        h("label", {}, "State", h("select", { id: "state", onchange: e => { this.state = e.target.value; this.filterRuns(); } },
          ...["", "training", "idle", "finished", "stopped", "lost"].map(s => h("option", { value: s, selected: s === this.state }, s || "any")))),
        this.shown),
      h("table", { class: "runs stacked" }, h("caption", { class: "hide" }, "Training runs"), h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Plot"), ...this.heads)), this.table), this.none, this.more);
    this.empty = h("div", { class: "card empty", hidden: true }, h("p", {}, "No runs yet. Train something, and watch it learn here:"),
      h("pre", { class: "mono" }, "export TINKER_BASE_URL=" + location.href.replace(/#.*/, "").replace(/\/$/, "") + " TINKER_API_KEY=" + (apiKey ? "YOUR_KEY" : "tml-local") + "\ntinker train sft --data mine.jsonl    # or: python3 train.py"),
      h("p", {}, h("a", { href: "#/chat" }, "Or talk to the model as it is.")));
    root.append(h("h1", {}, "Runs"), this.empty, this.compare, this.list);
  },

  async refresh() {
    /* A filter and an order look at all runs, not only at those that are listed without one. */
    const all = this.filter || this.state || this.sort.key !== "created" || !this.sort.down;
    let s = await get(API + "training_run_summaries?limit=" + (all ? 500 : this.limit));
    const runs = s.runs;
    while (all && runs.length < s.total && s.runs.length) {
      s = await get(API + "training_run_summaries?limit=500&offset=" + runs.length);
      runs.push(...s.runs);
    }
    this.runs = runs;
    this.total = s.total;
    this.now = s.now;
    await this.findOthers();
    if (!this.chosen) this.chosen = new Set(this.runs.filter(r => r.step > 0).slice(0, 3).map(r => r.id));
    this.empty.hidden = this.total > 0;
    this.compare.hidden = this.list.hidden = !this.total;
    this.more.hidden = this.runs.length >= this.total;
    this.drawTable();
    this.drawMetrics();
    reveal();
    await this.load(false);
  },

  find(id) {
    return this.runs.find(r => r.id === id) || this.others.get(id);
  },

  /* Runs in the plot that are not in the list: those of a link, and those that newer ones have pushed out. */
  async findOthers() {
    for (const id of this.chosen || [])
      if (!this.runs.some(r => r.id === id))
        try {
          this.others.set(id, (await get(API + "training_run_summaries?id=" + encodeURIComponent(id))).runs[0]);
        } catch (e) {
          if (e.status !== 404) throw e;
          this.chosen.delete(id);
        }
  },

  filterRuns() {
    this.drawTable();
    if (this.runs.length < this.total) refreshNow();
  },

  /* A run keeps its color as long as it is in the plot. */
  colorOf(id) {
    if (!this.colors.has(id)) {
      const used = new Set(this.colors.values());
      for (let k = 0; k < LINES; k++)
        if (!used.has(k)) {
          this.colors.set(id, k);
          break;
        }
    }
    return this.colors.get(id) ?? 0;
  },

  sortBy(key) {
    this.sort = { key, down: this.sort.key === key ? !this.sort.down : COLUMNS.find(c => c.key === key).num === true };
    this.filterRuns();
  },

  ordered() {
    const { key, down } = this.sort, words = this.filter.toLowerCase().split(/\s+/).filter(Boolean), c = COLUMNS.find(x => x.key === key);
    const value = r => c.text ? c.text(r).toLowerCase() : r[key] ?? -Infinity;
    return this.runs.filter(r => {
      const text = [r.id, r.name, r.notes, r.base_model, ...Object.entries(r.user_metadata).flat()].join(" ").toLowerCase();
      return (!this.state || r.state === this.state) && words.every(w => text.includes(w));
    }).sort((a, b) => {
      const x = value(a), y = value(b);
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
    });
  },

  drawTable() {
    const focus = document.activeElement && document.activeElement.dataset.focus, runs = this.ordered();
    this.heads.forEach((th, i) => COLUMNS[i].key === this.sort.key ? th.setAttribute("aria-sort", this.sort.down ? "descending" : "ascending") : th.removeAttribute("aria-sort"));
    this.shown.textContent = runs.length === this.total ? count(this.total) + (this.total === 1 ? " run" : " runs") : count(runs.length) + " of " + count(this.total) + " runs";
    this.table.replaceChildren(...runs.map(r => this.row(r)));
    this.none.hidden = runs.length > 0;
    if (focus) for (const e of this.table.querySelectorAll("[data-focus]")) if (e.dataset.focus === focus) e.focus();
  },

  row(r) {
    const on = this.chosen.has(r.id), meta = Object.entries(r.user_metadata).map(([k, v]) => k + ": " + v).join(", ");
    const cell = (label, cls, ...c) => h("td", { "data-label": label, class: cls }, h("div", {}, ...c));
    return h("tr", { "data-run": r.id },
      cell("In the plot", null, h("label", { class: "pick" }, h("input", { type: "checkbox", "data-focus": "c" + r.id, checked: on, "aria-label": "Show " + runName(r) + " in the plot", onchange: e => this.choose(r.id, e.target.checked) }), h("span", { class: "swatch" + (on ? " k" + this.colorOf(r.id) : "") }))),
      cell("Run", "wide", h("a", { href: "#/run/" + encodeURIComponent(r.id), "data-focus": "a" + r.id }, runName(r)), r.name && h("span", { class: "sub mono" }, shortId(r.id)), meta && h("span", { class: "sub" }, meta)),
      cell("State", null, h("span", { class: "state " + r.state }, r.state)),
      cell("Model", null, r.base_model, h("span", { class: "sub" }, r.rank ? "LoRA rank " + r.rank : "all parameters")),
      cell("Step", "num", count(r.step) + (r.planned_steps ? " / " + count(r.planned_steps) : ""), r.planned_steps > 0 && h("progress", { max: r.planned_steps, value: Math.min(r.step, r.planned_steps), "aria-label": "Progress of " + runName(r) })),
      cell("Loss", "num" + (diverged(r) ? " bad" : ""), lossText(r)),
      cell("Tokens/s", "num", r.tokens_per_second ? count(r.tokens_per_second) : dash),
      cell("Time left", "num", r.seconds_left === null ? dash : duration(r.seconds_left)),
      cell("Started", "num", h("span", { title: clockTime(r.created) }, ago(r.created, this.now))));
  },

  choose(id, on) {
    if (on && this.chosen.size >= LINES) {
      say("At most " + LINES + " runs fit into the plot");
      showError(new Error("At most " + LINES + " runs fit into the plot: take one out first."));
      on = false;
    }
    if (on) this.chosen.add(id);
    else {
      this.chosen.delete(id);
      this.colors.delete(id);
    }
    /* The address names what is compared, so it can be kept and sent. */
    history.replaceState(null, "", "#/runs" + (this.chosen.size ? "/" + [...this.chosen].map(encodeURIComponent).join(",") : ""));
    this.drawTable();
    this.load(true).catch(showError);
  },

  drawMetrics() {
    const names = new Set(["loss"]);
    for (const r of [...this.runs, ...this.others.values()]) for (const m of r.metrics) if (m !== "time") names.add(m);
    const list = [...names];
    if (list.join("\n") === this.names) return;
    this.names = list.join("\n");
    this.metrics.replaceChildren(...list.map(m => h("option", { value: m, selected: m === this.metric }, metricName(m))));
  },

  /* Fetch what has changed: a run that goes on, another metric, another part. */
  async load(all) {
    const width = Math.min(2000, Math.max(300, (this.plot.el.clientWidth || 800) * 1.5 | 0));
    const part = this.zoomed && look.x === "step" ? "&from=" + Math.max(0, Math.floor(this.zoomed[0]) - 1) + "&to=" + Math.max(0, Math.ceil(this.zoomed[1]) + 1) : "";
    await Promise.all([...this.chosen].map(async id => {
      const r = this.find(id), have = this.data.get(id);
      if (!r || (!all && have && have.step === r.step && have.loss === r.loss && have.metric === this.metric)) return;
      const names = encodeURIComponent(this.metric) + ",time", metric = this.metric;
      const got = await get(runPath(id, "/metrics?names=" + names + "&max_points=" + width + part));
      this.data.set(id, { step: r.step, loss: r.loss, metric, metrics: got.metrics });
    }));
    this.draw();
  },

  onZoom(view) {
    this.zoomed = view;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(true).catch(showError), 250);
  },

  draw() {
    const lines = [];
    for (const id of this.chosen) {
      const d = this.data.get(id), r = this.find(id), m = d && d.metrics[this.metric];
      if (r && m) lines.push({ id, name: runName(r), k: this.colorOf(id), x: placePoints(m, d.metrics.time, look.x), values: m.values, min: m.min, max: m.max, counts: m.counts });
    }
    this.plot.title = metricName(this.metric) + " of " + lines.length + (lines.length === 1 ? " run" : " runs");
    this.plot.set(lines, plotOptions());
    const missing = this.chosen.size - lines.length;
    this.legend.replaceChildren(...lines.map(l => h("li", {}, h("span", { class: "swatch k" + l.k }), l.name,
      h("button", { type: "button", class: "quiet", "aria-label": "Take " + l.name + " out of the plot", onclick: () => { this.choose(l.id, false); this.plot.svg.focus(); } }, "×"))),
      ...(lines.length ? [] : [h("li", { class: "dim" }, this.chosen.size ? "No value of this metric yet." : "Mark runs below to see them here.")]),
      ...(lines.length && missing > 0 ? [h("li", { class: "dim" }, missing + (missing === 1 ? " marked run has" : " marked runs have") + " no such metric.")] : []));
  },
};
