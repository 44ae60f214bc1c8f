/* system.js - the machine: what it does now, what waits, what holds memory, and what needs attention. */

const systemView = {
  title: "System",

  mount(root) {
    this.alerts = h("ul", { class: "alerts", "aria-label": "Alerts", role: "list" });
    this.tiles = h("div", { class: "tiles" });
    this.bar = h("div", { class: "stack", role: "img" });
    this.holders = h("tbody");
    this.queue = h("dl");
    this.work = h("dl");
    this.models = h("tbody");
    this.memory = h("section", { class: "card" });
    const head = (...t) => h("thead", {}, h("tr", {}, ...t.map((x, i) => h("th", { scope: "col", class: i > 0 && "num" }, x))));
    root.append(h("h1", {}, "System"), this.alerts, this.tiles, h("div", { class: "split" },
      h("div", { class: "column" }, this.memory, h("section", { class: "card" }, h("h2", {}, "Waiting and running"), this.queue)),
      h("section", { class: "card" }, h("h2", {}, "Work since the start"), this.work),
      h("section", { class: "card full" }, h("h2", {}, "Models"), h("table", { class: "stacked" }, h("caption", { class: "hide" }, "Base models"), head("Model", "Parameters", "Layers", "Context", "Weights in memory", "Loaded in"), this.models))));
    this.memory.append(h("h2", {}, "Memory"), this.bar, h("table", {}, h("caption", { class: "hide" }, "What holds memory"), head("Held by", "Size"), this.holders));
  },

  async refresh() {
    const [s, runs] = await Promise.all([get(API + "system"), get(API + "training_run_summaries?limit=100")]);
    const before = this.before, seconds = before ? (s.uptime_ms - before.uptime_ms) / 1000 : 0;
    const rate = key => seconds > 0 ? Math.max(0, s[key] - before[key]) / seconds : null, share = key => seconds > 0 ? Math.min(1, (s[key] - before[key]) / 1000 / seconds) : null;
    const busy = seconds > 0 ? Math.min(1, share("train_ms") + share("sample_ms")) : null, per = v => v === null ? dash : count(v);
    const tile = (label, value) => h("div", { class: "tile" }, h("span", {}, label), h("b", {}, value));
    /* Who is not the administrator sees what they do themselves, not what the machine holds. */
    this.memory.hidden = !s.resident_bytes;
    this.tiles.replaceChildren(...[tile("Uptime", duration(s.uptime_ms / 1000)), tile("Engine busy", busy === null ? dash : Math.round(busy * 100) + " %"),
      tile("Trained tokens/s", per(rate("train_tokens"))), tile("Generated tokens/s", per(rate("sample_tokens"))), tile("Threads", count(s.threads)), s.resident_bytes > 0 && tile("Memory in use", bytes(s.resident_bytes)),
      s.disk_bytes > 0 && tile("Disk free", bytes(s.disk_free_bytes)), tile("Prompt tokens reused", s.prompt_tokens ? Math.round(100 * s.cached_tokens / s.prompt_tokens) + " %" : dash)].filter(Boolean));
    this.before = s;
    this.drawAlerts(s, runs.runs);
    this.drawMemory(s);
    const rows = (list, pairs) => list.replaceChildren(...pairs.filter(Boolean).flatMap(([k, v]) => [h("dt", {}, k), h("dd", {}, v)]));
    rows(this.queue, [["Training requests running", count(s.training_running)], ["Training requests waiting", count(s.training_waiting) + (s.training_waiting > s.training_waiting_own ? ", yours: " + count(s.training_waiting_own) : "")],
      ["Samples being generated", count(s.samples_running)], ["Samples waiting", count(s.samples_waiting)], ["Programs connected", count(s.sessions)], ["Runs in memory", count(s.runs_in_memory)]]);
    rows(this.work, [["Tokens trained", count(s.train_tokens)], ["Passes", count(s.passes)], s.passes > 0 && ["Average pass", count(s.train_tokens / s.passes) + " tokens"], ["Optimizer steps", count(s.steps)], ["Time spent training", duration(s.train_ms / 1000)], ["Tokens generated", count(s.sample_tokens)],
      ["Samples generated", count(s.samples)], s.rounds > 0 && ["Average batch", (s.round_rows / s.rounds).toFixed(1) + " samples at once"], ["Time spent generating", duration(s.sample_ms / 1000)], ["Prompt tokens read", count(s.prompt_tokens)], ["Of these reused (prefix cache)", count(s.cached_tokens)], ["Requests that failed", count(s.failures)]]);
    this.models.replaceChildren(...s.models.map(m => h("tr", {}, h("td", { class: "wide" }, h("div", {}, m.name, h("span", { class: "sub" }, m.arch + (m.chat ? "" : ", no tokenizer")))),
      h("td", { class: "num", "data-label": "Parameters" }, bigCount(m.parameters)), h("td", { class: "num", "data-label": "Layers" }, count(m.layers)), h("td", { class: "num", "data-label": "Context" }, count(m.context) + " tokens"), h("td", { class: "num", "data-label": "Weights in memory" }, bytes(m.weight_bytes)), h("td", { class: "num", "data-label": "Loaded in" }, m.load_ms < 50 ? "< 0.1 s" : m.load_ms < 10000 ? (m.load_ms / 1000).toFixed(1) + " s" : duration(m.load_ms / 1000)))));
  },

  drawAlerts(s, runs) {
    const list = [];
    if (s.disk_bytes && s.disk_free_bytes < Math.max(2e9, s.disk_bytes * 0.05)) list.push(["bad", "The disk is nearly full: " + bytes(s.disk_free_bytes) + " are free. Delete checkpoints that you do not need."]);
    if (s.memory_free_bytes > 0 && s.memory_free_bytes < 5e8) list.push(["bad", "Little memory is free: " + bytes(s.memory_free_bytes) + "."]);
    for (const r of runs) if (r.in_memory && r.step >= 20 && !r.checkpoints) list.push(["", "Run " + runName(r) + " has no saved checkpoint after " + count(r.step) + " steps. When its program ends, what it learned is gone."]);
    for (const r of runs) if (r.in_memory && diverged(r)) list.push(["bad", "The loss of run " + runName(r) + " is no longer a number. Start again with a lower learning rate."]);
    for (const r of runs) if (r.state === "lost") list.push(["", "Run " + runName(r) + " was lost in a restart. Continue from a checkpoint."]);
    if (s.read_only) list.push(["", "This server is read-only: it samples, but trains nothing."]);
    this.alerts.hidden = !list.length;
    this.alerts.replaceChildren(...list.slice(0, 8).map(([c, t]) => h("li", { class: c }, t)));
  },

  /* The rest is what the allocator, threads and the computation itself use. */
  drawMemory(s) {
    const models = s.models.reduce((n, m) => n + m.weight_bytes, 0), known = [["Model weights", models], ["Adapters in training", s.adapter_bytes], ["Samples, and prompts kept for reuse", s.text_bytes], ["Waiting requests", s.request_bytes], ["Results not fetched yet", s.result_bytes]];
    const rest = Math.max(0, s.resident_bytes - known.reduce((n, [, v]) => n + v, 0)), all = [...known, ["Computation and other", rest]], total = all.reduce((n, [, v]) => n + v, 0) || 1;
    this.bar.setAttribute("aria-label", "Memory: " + all.map(([k, v]) => k + " " + bytes(v)).join(", "));
    this.bar.replaceChildren(...all.map(([, v], i) => {
      const e = h("span", { class: "k" + i });
      e.style.width = v / total * 100 + "%";
      return e;
    }));
    this.holders.replaceChildren(...all.map(([k, v], i) => h("tr", {}, h("td", {}, h("span", { class: "pick" }, h("span", { class: "swatch k" + i }), k)), h("td", { class: "num" }, bytes(v)))));
  },
};
