"use strict";
/* core.js - what all views share: elements, requests, the key, numbers in words.
 *
 * Whatever comes from the server goes into text nodes and attributes by name, never into markup.  The API key is kept in a variable
 * of this script and nowhere else: it goes with the tab. */

const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

/* h("td", { class: "num" }, "text", element, ...): an element.  on*: a listener.  Values null, false and undefined are left out. */
function h(tag, props, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(props || {})) {
    if (v === null || v === undefined || v === false) continue;
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (k === "value" || k === "checked" || k === "selected") e[k] = v;
    else e.setAttribute(k, v === true ? "" : v);
  }
  e.append(...children.flat().filter(c => c !== null && c !== undefined && c !== false));
  return e;
}

/* Make these the children, and touch nothing if they are. */
function fill(e, children) {
  if (children.length !== e.children.length || children.some((c, i) => e.children[i] !== c)) e.replaceChildren(...children);
}

function svg(tag, props, ...children) {
  const e = document.createElementNS(SVG, tag);
  for (const k in props) e.setAttribute(k, props[k]);
  e.append(...children);
  return e;
}

/* ---- requests ---- */

let apiKey = "";

/* A failed request, with the server's own words. */
class Failure extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

function explain(status, text) {
  try {
    const d = JSON.parse(text), m = d.error ? d.error.message : d.detail;
    if (Array.isArray(m)) return m.map(x => x.msg).join("; ");
    if (m) return m;
  } catch { /* not JSON: the status says enough */ }
  return text && text.length < 300 && !text.startsWith("<") ? text : "The server answered with status " + status + ".";
}

/* The links are relative to the page, so a prefix in front of it changes nothing. */
async function send(path, { method = "GET", body, signal, accept } = {}) {
  const headers = {};
  if (apiKey) headers["X-API-Key"] = apiKey;
  if (body) headers["Content-Type"] = "application/json";
  if (accept) headers.Accept = accept;
  let r;
  try {
    r = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body), credentials: "omit" });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Failure(0, "The server does not answer. Is it still running?");
  }
  if (r.status === 401) {
    const wrong = apiKey !== "";
    apiKey = "";
    signIn(wrong ? explain(401, await r.text()) : "");
    throw new Failure(401, "Sign in to go on.");
  }
  if (!r.ok) throw new Failure(r.status, explain(r.status, await r.text()));
  return r;
}

const get = async path => (await send(path)).json();
const API = "api/v1/";
const runPath = (id, rest = "") => API + "training_runs/" + encodeURIComponent(id) + rest;

/* ---- messages and dialogs ---- */

/* What a person did wrong stays until the next try; what a round of polling met goes with the next round that works. */
function showError(e, polled = false) {
  if (e && e.name === "AbortError") return;
  $("error").dataset.polled = polled ? "1" : "";
  $("error").hidden = !e;
  $("error").textContent = e ? e.message : "";
}

const say = text => { $("live").textContent = text; };

/* The sign-in.  One at a time, however many requests were refused. */
function signIn(problem) {
  if (document.querySelector("dialog")) return;
  const key = h("input", { type: "password", id: "apikey", autocomplete: "off", required: true, "aria-describedby": "why" });
  const form = h("form", { method: "dialog" }, h("h2", { id: "ask" }, "Sign in"),
    h("p", { id: "why", role: problem ? "alert" : null }, (problem ? problem + ". " : "") + "This server needs an API key. It is kept until this tab is closed or reloaded, and stored nowhere."),
    h("label", {}, "API key", key),
    h("div", { class: "row" }, h("button", { class: "main", id: "signin" }, "Sign in")));
  const dialog = h("dialog", { "aria-labelledby": "ask", oncancel: e => e.preventDefault() }, form);
  form.addEventListener("submit", () => {
    apiKey = key.value.trim();
    dialog.remove();
    $("signout").hidden = !apiKey;
    showError(null);
    navigate();
  });
  document.body.append(dialog);
  dialog.showModal();
}

/* Resolves to true when the person agrees. */
function confirmAction(title, text, action) {
  return new Promise(resolve => {
    const form = h("form", { method: "dialog" }, h("h2", { id: "ask" }, title), h("p", {}, text),
      h("div", { class: "row" }, h("button", { value: "", autofocus: true }, "Cancel"), h("button", { class: "danger", value: "yes" }, action)));
    const dialog = h("dialog", { "aria-labelledby": "ask" }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/* The clipboard of the browser is only there on localhost and under HTTPS; elsewhere the old way still works. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = h("textarea", { class: "hide", value: text });
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  say("Copied");
}

function saveFile(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/* ---- numbers and times ---- */

const dash = "–";

function number(v, digits = 4) {
  if (v === null || v === undefined || !isFinite(v)) return dash;
  const a = Math.abs(v);
  if (a !== 0 && (a < 0.001 || a >= 1e7)) return v.toExponential(digits - 1).replace("e+", "e");
  if (Math.abs(v - Math.round(v)) <= a * 1e-7) return Math.round(v).toLocaleString("en-US"); // sums of float32
  return a >= 1000 ? v.toLocaleString("en-US", { maximumFractionDigits: 1 }) : v.toFixed(digits);
}

/* Four decimals hide a learning rate such as 0.00035; it is written as people type it. */
const rateText = v => v < 1e-4 ? v.toExponential(3).replace(/\.?0*e/, "e") : String(+v.toPrecision(4));
const metricValue = (name, v) => /^learning_rate:mean$|(^|\/)(lr|learning_rate)$/.test(name) && v > 0 ? rateText(v) : number(v);

const count = v => Math.round(v || 0).toLocaleString("en-US");

/* 1.71 million, 8.03 billion. */
function bigCount(v) {
  if (v < 1e6) return count(v);
  return v < 1e9 ? (v / 1e6).toPrecision(3) + " million" : (v / 1e9).toPrecision(3) + " billion";
}

function bytes(v) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let i = 0;
  for (; v >= 1000 && i < 4; i++) v /= 1000;
  return (i && v < 100 ? v.toFixed(1) : Math.round(v)) + " " + units[i];
}

function duration(s) {
  if (s === null || s === undefined || !isFinite(s)) return dash;
  s = Math.round(s);
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + (s % 60) + " s";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor(s % 86400 / 3600) + " h";
}

/* The largest unit will do: "3 min ago". */
const ago = (then, now) => now - then < 5 ? "just now" : duration(now - then).replace(/^(\d+ \S+) .*/, "$1") + " ago";
const clockTime = s => new Date(s * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

/* "grad_norm:mean" is "Gradient norm" to people; what a program logged keeps its name. */
const METRIC_NAMES = {
  loss: "Loss", "loss:sum": "Loss, summed", "weight:sum": "Weighted tokens", "num_tokens:sum": "Tokens", "num_datums:sum": "Examples",
  "learning_rate:mean": "Learning rate", "grad_norm:mean": "Gradient norm", "update_norm:mean": "Update norm", "clip_coef:mean": "Clip coefficient",
  "pass_seconds:sum": "Seconds in passes", optim_seconds: "Seconds in optimizer", "ratio:mean": "Probability ratio", "clip_frac:mean": "Clipped fraction",
  "kl_sample_train:mean": "KL sampler–trainer", "forward/loss": "Evaluation loss",
};
const metricName = name => METRIC_NAMES[name] || name;
const shortId = id => id.length > 20 ? id.slice(0, 8) + "…" + id.slice(id.indexOf(":")) : id;
const runName = r => r.name || shortId(r.id);
/* A loss that is recorded but cannot be written as a number has become infinite, or worse. */
const diverged = r => r.loss === null && r.step > 0 && r.metrics.includes("loss");
const lossText = r => diverged(r) ? "not a number" : number(r.loss);
