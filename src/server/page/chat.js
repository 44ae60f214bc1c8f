/* chat.js - talk to a base model or a checkpoint, or to two of them at once.
 *
 * The server renders the conversation in the model's own chat format and streams tokens with their probabilities. */

const SAMPLING = [
  { key: "temperature", label: "Temperature", value: 1, min: 0, max: 2, step: 0.05 },
  { key: "top_p", label: "Top-p", value: 1, min: 0.01, max: 1, step: 0.01 },
  { key: "top_k", label: "Top-k (-1: all)", value: -1, min: -1, max: 1000, step: 1 },
  { key: "min_p", label: "Min-p", value: 0, min: 0, max: 1, step: 0.01 },
  { key: "max_tokens", label: "Max tokens", value: 256, min: 1, max: 32768, step: 1 },
  { key: "seed", label: "Seed (empty: random)", value: "", min: 0, max: 2 ** 31, step: 1 },
];
const bands = [0.05, 0.2, 0.5, 0.8];
const bandOf = p => bands.filter(b => p >= b).length;
const percent = p => p >= 0.9995 ? "100 %" : p < 0.001 ? "<0.1 %" : (p * 100).toFixed(1) + " %";

/* One answer while it grows: text, and the tokens it is made of. */
class Answer {
  constructor() {
    this.text = "";
    this.tokens = [];
    this.thinking = h("div", { class: "body" });
    this.fold = h("details", { hidden: true }, h("summary", {}, "Thinking"), this.thinking);
    this.body = h("div", { class: "body", "aria-live": "off" });
    this.done = 0;
  }

  add(text, logprobs) {
    this.text += text;
    for (const t of logprobs || []) this.tokens.push({ bytes: t.bytes || [...new TextEncoder().encode(t.token)], text: t.token, logprob: t.logprob, top: t.top_logprobs || [] });
  }

  /* Tokens may end inside a character and the text leaves out special ones and stops, so the text is what counts: tokens are laid
   * along it byte by byte. */
  pieces() {
    const bytes = new TextEncoder().encode(this.text), decoder = new TextDecoder(), out = [];
    let at = 0, from = 0, group = [];
    for (const t of this.tokens) {
      if (at >= bytes.length) break;
      /* Bytes that are no character are a replacement in the text: go on where the token is found again. */
      const fits = k => t.bytes.every((b, i) => at + k + i >= bytes.length || bytes[at + k + i] === b);
      const skip = t.bytes.length ? [...Array(24).keys()].findIndex(k => at + k < bytes.length && fits(k)) : -1;
      if (skip < 0) continue;
      if (skip > 0) {
        out.push({ text: decoder.decode(bytes.slice(from, at + skip)), tokens: group });
        from = at += skip;
        group = [];
      }
      group.push(t);
      at = Math.min(bytes.length, at + t.bytes.length);
      if (at < bytes.length && (bytes[at] & 0xc0) === 0x80) continue;
      out.push({ text: decoder.decode(bytes.slice(from, at)), tokens: group });
      from = at;
      group = [];
    }
    if (from < bytes.length) out.push({ text: decoder.decode(bytes.slice(from)), tokens: group });
    return out;
  }

  draw() {
    const open = this.text.indexOf("<think>"), close = this.text.indexOf("</think>");
    const begin = open >= 0 && this.text.slice(0, open).trim() === "" ? open + 7 : close >= 0 && open < 0 ? 0 : -1;
    const end = begin < 0 ? 0 : close >= 0 ? close + 8 : Infinity;
    /* Cut pieces where the tags begin and end, so that the tags themselves are left out. */
    const cuts = [open, begin, close, end].filter(c => c >= 0 && isFinite(c)), inside = [], outside = [];
    let at = 0;
    for (const p of this.pieces()) {
      const stops = [...cuts.map(c => c - at).filter(c => c > 0 && c < p.text.length).sort((a, b) => a - b), p.text.length];
      let from = 0;
      for (const to of stops) {
        const here = at + from, tag = begin >= 0 && (here < begin || (close >= 0 && here >= close && here < end));
        if (!tag) (begin >= 0 && here < end ? inside : outside).push(this.span({ text: p.text.slice(from, to), tokens: p.tokens }));
        from = to;
      }
      at += p.text.length;
    }
    this.fold.hidden = begin < 0;
    this.thinking.replaceChildren(...inside);
    this.body.replaceChildren(...outside);
  }

  span(p) {
    if (!p.tokens.length) return document.createTextNode(p.text);
    const prob = Math.exp(Math.min(...p.tokens.map(t => t.logprob)));
    const e = h("span", { class: "t p" + bandOf(prob) }, p.text);
    e.token = p;
    return e;
  }
}

const chatView = {
  title: "Chat",
  instant: true, /* one can write before the models are known */
  system: "", stops: "", compareOn: false, colored: false, plain: false, draft: "",
  values: Object.fromEntries(SAMPLING.map(s => [s.key, s.value])),
  panes: [{ model: "", turns: [] }, { model: "", turns: [] }],

  mount(root, model) {
    if (model) this.panes[0].model = model;
    this.known = null; /* runs may have other names by now */
    this.box = h("div", { class: "panes" });
    this.input = h("textarea", { id: "prompt", rows: 3, placeholder: "Write a message. Enter sends it, Shift+Enter begins a new line.", value: this.draft, oninput: e => { this.draft = e.target.value; },
      onkeydown: e => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); this.ask(); } } });
    this.sendButton = h("button", { class: "main", type: "button", id: "send", onclick: () => this.ask() }, "Send");
    this.stopButton = h("button", { type: "button", id: "stop", disabled: true, onclick: () => this.stop() }, "Stop");
    const check = (key, id, text) => h("label", { class: "check" }, h("input", { type: "checkbox", id, checked: this[key], onchange: e => { this[key] = e.target.checked; this.drawPanes(); } }), text);
    const settings = h("details", { class: "card settings", open: innerWidth > 760 }, h("summary", {}, h("h2", {}, "Settings")),
      check("compareOn", "compare", "Compare two models"), check("colored", "colors", "Color by probability"), check("plain", "plain", "Plain text, no chat format"),
      h("label", {}, "System prompt", h("textarea", { id: "system", rows: 3, value: this.system, oninput: e => { this.system = e.target.value; } })),
      ...SAMPLING.map(s => h("label", {}, s.label, h("input", { type: "number", id: "set-" + s.key, min: s.min, max: s.max, step: s.step, value: this.values[s.key], oninput: e => { this.values[s.key] = e.target.value; } }))),
      h("label", {}, "Stop at (one text per line)", h("textarea", { id: "stops", rows: 2, value: this.stops, oninput: e => { this.stops = e.target.value; } })));
    root.append(h("h1", {}, "Chat"), h("div", { class: "chat" },
      h("div", {}, this.box, h("section", { class: "card compose", "aria-label": "Message" }, h("label", { for: "prompt", class: "hide" }, "Message"), this.input,
        h("div", { class: "row" }, this.sendButton, this.stopButton,
          h("button", { type: "button", onclick: () => this.clear() }, "New conversation"),
          h("button", { type: "button", id: "save", onclick: () => this.save() }, "Save as JSONL")))),
      settings));
    this.box.addEventListener("pointerover", e => this.hover(e.target, e));
    this.box.addEventListener("pointerleave", () => { $("tip").hidden = true; });
    this.drawPanes();
  },

  unmount() {
    this.stop();
    $("tip").hidden = true;
  },

  async refresh() {
    const models = await get("v1/models"), ids = JSON.stringify(models);
    if (ids === this.known) return;
    const s = await get(API + "training_run_summaries?limit=500"), names = new Map(s.runs.map(r => [r.id, runName(r)]));
    this.models = models.data.map(m => {
      const path = /^tinker:\/\/([^/]+)\/[^/]+\/(.*)$/.exec(m.id);
      const run = path && (names.get(path[1]) || shortId(path[1]));
      return { id: m.id, group: run || "Base models", text: path ? run + " / " + path[2] : m.id };
    });
    this.known = ids;
    this.panes.forEach(p => { if (!p.model && this.models.length) p.model = this.models[0].id; });
    this.drawPanes();
  },

  drawPanes() {
    const shown = this.compareOn ? this.panes : this.panes.slice(0, 1);
    this.box.className = "panes" + (this.compareOn ? " two" : "") + (this.colored ? " colored" : "");
    this.box.replaceChildren(...shown.map((p, i) => {
      p.talk = h("div", { class: "talk" });
      const select = h("select", { id: "model" + i, onchange: e => { p.model = e.target.value; } });
      const list = this.models || [];
      if (p.model && !list.some(m => m.id === p.model)) select.append(h("option", { value: p.model, selected: true }, p.model));
      const groups = new Map();
      for (const m of list) groups.set(m.group, [...groups.get(m.group) || [], m]);
      for (const [name, models] of groups) select.append(h("optgroup", { label: name }, ...models.map(m => h("option", { value: m.id, selected: m.id === p.model }, m.text))));
      return h("section", { class: "card pane", "aria-label": "Conversation " + (i + 1) }, h("label", {}, this.compareOn ? "Model " + (i + 1) : "Model", select),
        this.colored && h("div", { class: "key", "aria-hidden": "true" }, "Probability:", ...["< 5 %", "5–20 %", "20–50 %", "50–80 %", "> 80 %"].map((t, k) => h("span", { class: "t p" + k }, t))), p.talk);
    }));
    for (const p of shown) this.drawTalk(p);
  },

  drawTalk(p) {
    if (!p.turns.length) return p.talk.replaceChildren(h("p", { class: "dim" }, "Nothing said yet. Write below: the message goes to the model in its own chat format."));
    p.talk.replaceChildren(...p.turns.map(t => this.turn(t, p)));
  },

  turn(t, p) {
    const copy = h("button", { class: "quiet", type: "button", "aria-label": "Copy this text", onclick: () => copyText(t.answer ? t.answer.text : t.content) }, "Copy");
    if (t.role === "user") return h("article", { class: "turn user" }, h("div", { class: "who" }, "You", copy), h("div", { class: "body" }, t.content));
    t.foot = h("div", { class: "who" }, t.note || "");
    const again = t === p.turns[p.turns.length - 1] && h("button", { class: "quiet", type: "button", onclick: () => this.again(p) }, "Try again");
    return h("article", { class: "turn" }, h("div", { class: "who" }, "Model", copy, again), t.answer.fold, t.answer.body, t.foot);
  },

  hover(e, event) {
    const tip = $("tip"), piece = e.token;
    tip.hidden = !piece;
    if (!piece) return;
    const rows = [];
    for (const t of piece.tokens) {
      rows.push(h("b", {}, JSON.stringify(t.text) + "  " + percent(Math.exp(t.logprob))));
      for (const o of t.top) rows.push(h("div", {}, h("span", {}, JSON.stringify(o.token)), h("b", {}, percent(Math.exp(o.logprob)))));
    }
    tip.replaceChildren(...rows);
    tip.style.left = Math.max(4, Math.min(innerWidth - tip.offsetWidth - 4, event.clientX + 12)) + "px";
    tip.style.top = Math.max(4, Math.min(innerHeight - tip.offsetHeight - 4, event.clientY + 16)) + "px";
  },

  request(p) {
    const body = { model: p.model, stream: true, stream_options: { include_usage: true } };
    for (const s of SAMPLING) {
      const v = this.values[s.key];
      if (v !== "" && !(s.key === "top_k" && +v === -1)) body[s.key] = +v;
    }
    const stops = this.stops.split("\n").filter(t => t);
    if (stops.length) body.stop = stops;
    const turns = p.turns.filter(t => t.role === "user" || t.answer.text);
    if (this.plain) return ["v1/completions", { ...body, logprobs: 5, prompt: (this.system ? this.system + "\n" : "") + turns.map(t => t.role === "user" ? t.content : t.answer.text).join("") }];
    const messages = turns.map(t => ({ role: t.role, content: t.role === "user" ? t.content : t.answer.text }));
    if (this.system) messages.unshift({ role: "system", content: this.system });
    return ["v1/chat/completions", { ...body, logprobs: true, top_logprobs: 5, messages }];
  },

  async ask() {
    const text = this.input.value, shown = this.compareOn ? this.panes : this.panes.slice(0, 1);
    if (!text.trim() || this.abort) return;
    this.input.value = this.draft = "";
    for (const p of shown) p.turns.push({ role: "user", content: text });
    await this.answer(shown);
  },

  /* Another answer to the last question. */
  async again(p) {
    if (this.abort) return;
    p.turns.pop();
    await this.answer([p]);
    this.input.focus();
  },

  async answer(panes) {
    this.abort = new AbortController();
    this.sendButton.disabled = true;
    this.stopButton.disabled = false;
    showError(null);
    await Promise.all(panes.map(p => this.stream(p).catch(e => showError(e))));
    this.abort = null;
    this.sendButton.disabled = false;
    this.stopButton.disabled = true;
    say("Answer complete");
  },

  stop() {
    if (this.abort) this.abort.abort();
  },

  async stream(p) {
    const [path, body] = this.request(p), answer = new Answer(), turn = { role: "assistant", answer }, start = performance.now();
    p.turns.push(turn);
    this.drawTalk(p);
    turn.foot.textContent = "…";
    let drawn = 0, why = "", made = 0;
    const finish = note => {
      turn.note = turn.foot.textContent = note;
      this.drawGrowing(answer);
    };
    try {
      const r = await send(path, { method: "POST", body, signal: this.abort.signal });
      for await (const event of events(r)) {
        if (event.error) throw new Failure(500, event.error.message);
        if (event.usage) made = event.usage.completion_tokens;
        const c = event.choices && event.choices[0];
        if (!c) continue;
        answer.add(c.delta ? c.delta.content || "" : c.text || "", c.delta ? c.logprobs && c.logprobs.content : completionTokens(c.logprobs));
        why = c.finish_reason || why;
        if (performance.now() - drawn > 60) {
          this.drawGrowing(answer);
          drawn = performance.now();
        }
      }
      made = made || answer.tokens.length;
      const seconds = (performance.now() - start) / 1000;
      finish(count(made) + " tokens, " + (made / seconds).toFixed(0) + " per second" + (why === "length" ? ", cut at the limit" : ""));
    } catch (e) {
      finish(e.name === "AbortError" ? "Stopped after " + answer.tokens.length + " tokens" : "");
      if (e.name !== "AbortError") {
        turn.foot.className = "who fail";
        turn.foot.textContent = turn.note = e.message;
        throw e;
      }
    }
  },

  /* Follow the text as it grows, unless the person has scrolled up to read. */
  drawGrowing(answer) {
    const page = document.documentElement, follows = page.scrollHeight - page.clientHeight - page.scrollTop < 120;
    answer.draw();
    if (follows) page.scrollTop = page.scrollHeight;
  },

  clear() {
    this.stop();
    for (const p of this.panes) p.turns = [];
    this.drawPanes();
    this.input.focus();
  },

  /* One conversation per line, as `tinker train sft` reads it; thinking stays in the text.  A question without an answer (stopped
   * before its first token, or failed) teaches nothing and is left out. */
  save() {
    const shown = this.compareOn ? this.panes : this.panes.slice(0, 1);
    const answered = p => p.turns.filter((t, i) => t.role === "user" ? p.turns[i + 1] && p.turns[i + 1].answer.text : t.answer.text);
    const lines = shown.filter(p => answered(p).length).map(p => JSON.stringify({ messages: [...(this.system ? [{ role: "system", content: this.system }] : []), ...answered(p).map(t => ({ role: t.role, content: t.role === "user" ? t.content : t.answer.text }))] }));
    if (lines.length) saveFile("chat.jsonl", "application/jsonl", lines.join("\n") + "\n");
  },
};

/* Completions have arrays side by side where chat has objects. */
function completionTokens(l) {
  if (!l || !l.tokens) return [];
  return l.tokens.map((token, i) => ({ token, logprob: l.token_logprobs[i], top_logprobs: Object.entries((l.top_logprobs || [])[i] || {}).map(([t, logprob]) => ({ token: t, logprob })) }));
}

/* Server-sent events as they arrive. */
async function* events(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    rest += decoder.decode(value || new Uint8Array(), { stream: !done });
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines)
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    if (done) return;
  }
}
