/* app.js - which view is shown, how often it asks, light and dark. */

const VIEWS = { runs: runsView, run: runView, chat: chatView, system: systemView };
const EVERY_MS = 2000;
const SLOW_MS = 4000;
let view = null, timer = 0, turn = 0;
let reveal = () => {}; /* a view calls it when it has something to show */

const setTitle = text => { document.title = text + " – Tinker"; };

function navigate() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/"), next = VIEWS[name] || runsView;
  let param = null;
  try {
    param = rest.length ? decodeURIComponent(rest.join("/")) : null;
  } catch { /* not an address of ours */ }
  if (view && view.unmount) view.unmount();
  view = next;
  showError(null);
  $("tip").hidden = true;
  $("main").replaceChildren();
  setTitle(view.title);
  for (const a of document.querySelectorAll("nav a")) {
    const on = a.hash === "#/" + (name === "run" ? "runs" : VIEWS[name] ? name : "runs");
    if (on) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  const box = h("div", { hidden: !view.instant }), wait = h("p", { class: "dim", id: "wait", role: "status" }, "Loading…");
  $("main").append(box);
  if (!view.instant) $("main").prepend(wait);
  reveal = () => {
    wait.remove();
    box.hidden = false;
  };
  view.mount(box, param);
  refreshNow();
}

/* One round at a time; a view that was left does not answer. */
async function round(mine) {
  if (!document.hidden && !document.querySelector("dialog #apikey")) {
    const slow = setTimeout(() => {
      if (mine !== turn) return;
      $("link").textContent = "Waiting for the server…";
      $("link").classList.add("off");
    }, SLOW_MS);
    try {
      await view.refresh();
      if (mine !== turn) return;
      reveal();
      if ($("error").dataset.polled) showError(null);
      $("link").textContent = "Live";
      $("link").classList.remove("off");
    } catch (e) {
      if (mine !== turn) return;
      if (e.status !== 401) showError(e, true);
      $("link").textContent = e.status ? "Error" : "Not connected";
      $("link").classList.add("off");
      if (e.status === 404 && $("wait")) $("wait").replaceChildren(h("a", { href: "#/runs" }, "← All runs"));
    } finally {
      clearTimeout(slow);
    }
  }
  timer = setTimeout(() => round(mine), EVERY_MS);
}

function refreshNow() {
  clearTimeout(timer);
  round(++turn);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

const darkSystem = matchMedia("(prefers-color-scheme: dark)");
setTheme(darkSystem.matches ? "dark" : "light");
darkSystem.addEventListener("change", e => setTheme(e.matches ? "dark" : "light"));
$("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
$("signout").addEventListener("click", () => {
  apiKey = "";
  $("signout").hidden = true;
  $("main").replaceChildren();
  signIn("");
});
document.querySelector(".skip").addEventListener("click", e => {
  e.preventDefault();
  $("main").focus();
});
addEventListener("hashchange", navigate);
document.addEventListener("visibilitychange", () => !document.hidden && refreshNow());
navigate();
