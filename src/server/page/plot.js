/* plot.js - lines over steps or time: axes, hover and keyboard cursor, logarithmic scale, smoothing, zoom.
 *
 * One SVG.  Lines of a class k0 to k7 take their color from the style sheet, so light and dark need no drawing.  A point that stands
 * for several steps (the server thins long runs) is drawn with the band of its minimum and maximum. */

/* Round numbers between low and top, about n of them and at least two if the range has two. */
function ticks(low, top, n) {
  const span = top - low || 1, raw = span / n, size = 10 ** Math.floor(Math.log10(raw));
  return multiples(low, top, size * [1, 2, 2.5, 5, 10].find(m => m * size >= raw * 0.999));
}

function multiples(low, top, step) {
  const out = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= top + step * 1e-9; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return out;
}

/* Times in seconds: steps that a clock has, at most n of them.  offset: of the time zone, so that days begin at midnight. */
const CLOCK_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

function timeTicks(low, top, n, offset = 0) {
  const raw = (top - low) / n, step = CLOCK_STEPS.find(s => s >= raw) || Math.ceil(raw / 86400) * 86400;
  return raw < 0.5 ? ticks(low, top, n) : multiples(low - offset, top - offset, step).map(v => v + offset);
}

/* Powers of ten, with 2 and 5 between them when there are few. */
function logTicks(low, top) {
  const out = [], from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(top)), skip = Math.ceil((to - from) / 6);
  for (let e = from; e <= to; e += skip)
    for (const m of to - from <= 2 ? [1, 2, 5] : [1]) {
      const v = m * 10 ** e;
      if (v >= low * 0.999 && v <= top * 1.001) out.push(v);
    }
  return out.length > 1 ? out : [low, top];
}

/* top: the largest value of the axis, so that all its labels are written alike. */
const tickText = (v, step, top) => {
  const a = Math.abs(v);
  if (a !== 0 && (top < 1e-3 || top >= 1e6)) return v.toExponential(1).replace(".0", "").replace("e+", "e");
  return v.toLocaleString("en-US", { maximumFractionDigits: Math.max(0, Math.min(6, -Math.floor(Math.log10(step || a || 1)) + 1)) });
};

/* Exponential moving average with the bias of its start taken out, as TensorBoard draws it. */
function smoothValues(values, weight) {
  let last = 0, debias = 0;
  return values.map(v => {
    if (v === null || !isFinite(v)) return v;
    last = last * weight + (1 - weight) * v;
    debias = debias * weight + 1 - weight;
    return last / debias;
  });
}

const tenth = v => Math.round(v * 10) / 10; /* of a pixel */

class Plot {
  /* onzoom(from, to): the person chose a part; null, null: all of it. */
  constructor({ title, height = 260, onzoom }) {
    this.title = title;
    this.height = height;
    this.onzoom = onzoom;
    this.lines = [];
    this.view = null; /* [from, to] of x, null: everything */
    this.svg = svg("svg", { role: "img", tabindex: "0", "aria-label": title });
    this.reset = h("button", { class: "reset", type: "button", hidden: true, onclick: () => { this.zoom(null); this.svg.focus(); } }, "Show everything");
    this.el = h("div", { class: "plot" }, this.svg, this.reset);
    this.svg.addEventListener("pointermove", e => this.onMove(e));
    this.svg.addEventListener("pointerleave", () => this.hideCursor());
    this.svg.addEventListener("pointerdown", e => this.onDown(e));
    this.svg.addEventListener("pointerup", e => this.onUp(e));
    this.svg.addEventListener("dblclick", () => this.zoom(null));
    this.svg.addEventListener("keydown", e => this.onKey(e));
    this.svg.addEventListener("blur", () => this.hideCursor());
    /* A long page of plots is drawn once; from then on only what is seen, or nearly, follows the numbers. */
    this.near = true;
    this.stale = false;
    new IntersectionObserver(([e]) => {
      this.near = e.isIntersecting;
      if (this.near && this.stale) this.draw();
    }, { rootMargin: "50%" }).observe(this.el);
    new ResizeObserver(() => this.width !== this.el.clientWidth && this.draw()).observe(this.el);
  }

  /* lines: [{ name, k, x: [], values: [], min, max }].  options: { log, smooth, xLabel, xText } */
  set(lines, options) {
    this.lines = lines;
    this.options = options;
    this.draw();
  }

  /* The part of each line that is seen, with one point beyond either end. */
  visible(l) {
    if (!this.view) return [0, l.x.length];
    let a = l.x.findIndex(x => x >= this.view[0]), b = l.x.findIndex(x => x > this.view[1]);
    if (a < 0) a = l.x.length;
    if (b < 0) b = l.x.length;
    return [Math.max(0, a - 1), Math.min(l.x.length, b + 1)];
  }

  draw() {
    const o = this.options, width = this.el.clientWidth;
    if (!o || !width) return;
    this.stale = !this.near && this.width === width;
    if (this.stale) return;
    this.width = width;
    const H = Math.max(this.height, Math.min(this.height * 1.4, width * 0.24)) | 0, left = 58, right = 12, top = 8, bottom = 34;
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    this.shown = this.lines.map(l => {
      const [a, b] = this.visible(l), smooth = o.smooth > 0 ? smoothValues(l.values, o.smooth) : l.values;
      for (let i = a; i < b; i++) {
        x0 = Math.min(x0, l.x[i]);
        x1 = Math.max(x1, l.x[i]);
        for (const v of [l.values[i], l.min && l.min[i], l.max && l.max[i]])
          if (v !== null && v !== undefined && isFinite(v) && (!o.log || v > 0)) {
            y0 = Math.min(y0, v);
            y1 = Math.max(y1, v);
          }
      }
      return { l, a, b, smooth };
    });
    if (this.view) [x0, x1] = this.view;
    if (!(x0 <= x1)) [x0, x1] = [0, 1];
    if (!(y0 <= y1)) [y0, y1] = o.log ? [0.1, 1] : [0, 1];
    if (y1 - y0 <= 1e-6 * Math.max(Math.abs(y0), Math.abs(y1)) && !o.log) y0 = y1 = Math.fround((y0 + y1) / 2); // rounding of float32 is no curve
    if (y0 === y1) [y0, y1] = o.log ? [y0 / 2, y1 * 2] : [y0 - Math.abs(y0 || 1) * 0.1, y1 + Math.abs(y1 || 1) * 0.1];
    else if (!o.log) [y0, y1] = [y0 - (y1 - y0) * 0.04, y1 + (y1 - y0) * 0.04];
    if (x0 === x1) x1 = x0 + 1;
    const ly = o.log ? Math.log10 : v => v, by = ly(y0), dy = ly(y1) - by || 1;
    this.px = x => left + (x - x0) / (x1 - x0) * (width - left - right);
    this.py = y => top + (1 - (ly(y) - by) / dy) * (H - top - bottom);
    this.inverse = p => x0 + (p - left) / (width - left - right) * (x1 - x0);
    this.range = [x0, x1];
    this.box = { left, right: width - right, top, bottom: H - bottom };

    const parts = [], ys = o.log ? logTicks(y0, y1) : ticks(y0, y1, Math.max(3, H / 50)), xs = (o.xTicks || ticks)(x0, x1, Math.max(3, width / (o.xTicks ? 130 : 90)));
    for (const v of ys)
      parts.push(svg("line", { class: "grid", x1: left, x2: width - right, y1: this.py(v), y2: this.py(v) }),
        svg("text", { x: left - 6, y: this.py(v) + 4, "text-anchor": "end" }, tickText(v, o.log ? v : ys[1] - ys[0], o.log ? Math.abs(v) : Math.max(...ys.map(Math.abs)))));
    for (const v of xs)
      parts.push(svg("line", { class: "grid", x1: this.px(v), x2: this.px(v), y1: top, y2: H - bottom }),
        svg("text", { x: this.px(v), y: H - bottom + 15, "text-anchor": "middle" }, o.xText ? o.xText(v, x1 - x0) : tickText(v, xs[1] - xs[0], x1)));
    parts.push(svg("line", { class: "axis", x1: left, x2: width - right, y1: H - bottom, y2: H - bottom }),
      svg("text", { class: "title", x: width - right, y: H - 4, "text-anchor": "end" }, o.xLabel || "Step"));
    const clip = "clip" + (Plot.count = (Plot.count || 0) + 1);
    parts.push(svg("defs", {}, svg("clipPath", { id: clip }, svg("rect", { x: left, y: top - 2, width: Math.max(0, width - left - right), height: H - top - bottom + 4 }))));
    const group = svg("g", { "clip-path": "url(#" + clip + ")" });
    for (const s of this.shown) {
      if (s.l.min && !o.smooth) group.append(svg("path", { class: "band k" + s.l.k, d: this.bandPath(s) }));
      if (o.smooth > 0) group.append(svg("path", { class: "raw k" + s.l.k, d: this.linePath(s, s.l.values) }));
      group.append(svg("path", { class: "k" + s.l.k, d: this.linePath(s, s.smooth) }));
      if (s.b - s.a === 1 && s.smooth[s.a] !== null) group.append(svg("circle", { class: "k" + s.l.k, r: 3.5, cx: this.px(s.l.x[s.a]), cy: this.py(s.smooth[s.a]) }));
    }
    this.cursor = svg("g", {});
    this.svg.setAttribute("viewBox", "0 0 " + width + " " + H);
    this.svg.replaceChildren(...parts, group, this.cursor);
    this.svg.setAttribute("aria-label", this.describe());
  }

  linePath(s, values) {
    let d = "", pen = "M";
    for (let i = s.a; i < s.b; i++) {
      const v = values[i];
      if (v === null || !isFinite(v) || (this.options.log && v <= 0)) {
        pen = "M";
        continue;
      }
      d += pen + tenth(this.px(s.l.x[i])) + " " + tenth(this.py(v));
      pen = "L";
    }
    return d;
  }

  bandPath(s) {
    const up = [], down = [];
    for (let i = s.a; i < s.b; i++) {
      const lo = s.l.min[i], hi = s.l.max[i];
      if (lo === null || hi === null || (this.options.log && lo <= 0)) continue;
      const x = tenth(this.px(s.l.x[i])) + " ";
      up.push(x + tenth(this.py(hi)));
      down.push(x + tenth(this.py(lo)));
    }
    return up.length > 1 ? "M" + up.join("L") + "L" + down.reverse().join("L") + "Z" : "";
  }

  describe() {
    return this.title + ". " + this.lines.map(l => {
      const last = l.values.length - 1;
      return last < 0 ? l.name + ": no values" : l.name + ": " + number(l.values[0]) + " at first, " + number(l.values[last]) + " last";
    }).join("; ") + ". Arrow keys read values, plus and minus zoom, 0 shows everything.";
  }

  /* ---- cursor ---- */

  nearest(l, x) {
    let a = 0, b = l.x.length - 1;
    while (b - a > 1) {
      const m = (a + b) >> 1;
      if (l.x[m] < x) a = m;
      else b = m;
    }
    return b >= 0 && Math.abs(l.x[b] - x) <= Math.abs(l.x[a] - x) ? b : a;
  }

  showCursor(x, clientX, clientY) {
    const rows = [], dots = [];
    let at = null;
    for (const s of this.shown) {
      if (!s.l.x.length) continue;
      const i = this.nearest(s.l, x), v = s.smooth[i], raw = s.l.values[i];
      if (at === null) at = s.l.x[i];
      const few = s.l.counts && s.l.counts[i] > 1 ? " (" + number(s.l.min[i]) + " to " + number(s.l.max[i]) + ")" : "";
      rows.push({ k: s.l.k, name: s.l.name, text: number(raw) + few + (this.options.smooth > 0 ? ", smoothed " + number(v) : "") });
      if (v !== null && isFinite(v) && (!this.options.log || v > 0)) dots.push(svg("circle", { class: "k" + s.l.k, r: 3.5, cx: this.px(s.l.x[i]), cy: this.py(v) }));
    }
    if (at === null) return;
    this.at = at;
    const px = this.px(at), head = (this.options.xName || "Step") + " " + (this.options.xText ? this.options.xText(at, 1) : count(at));
    this.cursor.replaceChildren(svg("line", { class: "cursor", x1: px, x2: px, y1: this.box.top, y2: this.box.bottom }), ...dots);
    const tip = $("tip");
    tip.replaceChildren(h("b", {}, head), ...rows.map(r => h("div", {}, h("span", {}, r.name), h("b", {}, r.text))));
    tip.hidden = false;
    const box = this.svg.getBoundingClientRect(), cx = clientX ?? box.left + px * box.width / this.width, cy = clientY ?? box.top + 12;
    tip.style.left = Math.max(4, Math.min(innerWidth - tip.offsetWidth - 4, cx + 14)) + "px";
    tip.style.top = Math.max(4, Math.min(innerHeight - tip.offsetHeight - 4, cy + 14)) + "px";
    return head + ": " + rows.map(r => r.name + " " + r.text).join(", ");
  }

  hideCursor() {
    $("tip").hidden = true;
    if (this.cursor) this.cursor.replaceChildren();
  }

  /* ---- pointer and keys ---- */

  place(e) {
    const box = this.svg.getBoundingClientRect();
    return (e.clientX - box.left) * this.width / box.width;
  }

  onDown(e) {
    if (e.button !== 0 || !this.px) return;
    this.drag = this.place(e);
    this.svg.setPointerCapture(e.pointerId);
  }

  onMove(e) {
    if (!this.px) return;
    const p = this.place(e);
    if (this.drag !== undefined && Math.abs(p - this.drag) > 4) {
      const a = Math.max(this.box.left, Math.min(p, this.drag)), b = Math.min(this.box.right, Math.max(p, this.drag));
      this.cursor.replaceChildren(svg("rect", { class: "brush", x: a, y: this.box.top, width: Math.max(0, b - a), height: this.box.bottom - this.box.top }));
    } else {
      this.showCursor(this.inverse(p), e.clientX, e.clientY);
    }
  }

  onUp(e) {
    const from = this.drag;
    this.drag = undefined;
    if (from === undefined || !this.px) return;
    const p = this.place(e);
    if (Math.abs(p - from) > 8) this.zoom([this.inverse(Math.min(p, from)), this.inverse(Math.max(p, from))]);
  }

  zoom(view) {
    this.view = view;
    this.reset.hidden = !view;
    this.draw();
    if (this.onzoom) this.onzoom(view);
  }

  onKey(e) {
    if (!this.px || e.ctrlKey || e.metaKey || e.altKey) return;
    const [a, b] = this.range, at = this.at === undefined ? b : this.at, line = this.shown.find(s => s.l.x.length);
    if (e.key === "ArrowLeft" || e.key === "ArrowRight") {
      if (!line) return;
      const i = this.nearest(line.l, at) + (this.at === undefined ? 0 : (e.key === "ArrowLeft" ? -1 : 1) * (e.shiftKey ? 10 : 1));
      say(this.showCursor(line.l.x[Math.max(0, Math.min(line.l.x.length - 1, i))]) || "");
    } else if (e.key === "+" || e.key === "=") {
      const half = (b - a) / 4;
      this.zoom([at - half, at + half]);
    } else if (e.key === "-") {
      this.zoom([a - (b - a) / 2, b + (b - a) / 2]);
    } else if (e.key === "0" || e.key === "Escape") {
      this.zoom(null);
    } else {
      return;
    }
    e.preventDefault();
  }
}
