// The frame of the page: session, routes by address, theme, keyboard.

import { API, json, session } from "./api.js";
import { announce, at, el, icon, remember, remembered, toast } from "./dom.js";
import * as evaluations from "./evaluations.js";
import * as home from "./home.js";
import * as models from "./models.js";
import * as trainings from "./trainings.js";
import * as work from "./work.js";

const VIEWS = { home, work, models, trainings, evaluations }; // all at once: a view must not be missing when the network is
const TITLES = { home: "Cases", work: "Job", models: "Models", trainings: "Trainings", evaluations: "Evaluations" };
let current = { name: null, first: null, view: null };
let turn = 0;

async function route() {
  if (!session.user) return;
  const [section = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const name = section === "jobs" ? "work" : section in VIEWS ? section : "home";
  const parameters = name === "home" ? [] : rest;
  if (current.view?.update && current.name === name && current.first === parameters[0]) return current.view.update(parameters);
  const mine = ++turn;
  current.view?.close?.();
  current = { name, first: parameters[0], view: null };
  document.title = `${TITLES[name]} – Reshift`;
  for (const link of at("sections").children) {
    const own = link.dataset.view === (name === "work" ? "home" : name);
    own ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  const main = at("main");
  main.setAttribute("aria-busy", "true");
  try {
    const place = el("div", { class: "view" });
    main.replaceChildren(place);
    const view = await VIEWS[name].show(place, parameters);
    if (document.activeElement === document.body) main.focus({ preventScroll: true }); // what had the focus is gone
    if (mine === turn) current.view = view;
    else view?.close?.();
  } catch (err) {
    if (mine === turn && err.status !== 401) main.replaceChildren(failed(err));
  } finally {
    main.removeAttribute("aria-busy");
  }
}

function failed(err) {
  announce(err.message);
  return el(
    "div",
    { class: "page" },
    el("h1", { text: err.status === 404 ? "Not there" : "This did not work" }),
    el("p", { class: "notice error", text: err.message }),
    el("p", {}, el("a", { href: "#/", text: "All jobs" })),
  );
}

function signIn() {
  session.user = null;
  current.view?.close?.();
  current = { name: null, first: null, view: null };
  const token = el("input", {
    type: "password",
    id: "token",
    required: true,
    autocomplete: "current-password",
    "aria-describedby": "token-error",
  });
  const error = el("p", { class: "notice error", id: "token-error", role: "alert", hidden: true });
  const enter = async (event) => {
    event.preventDefault();
    try {
      await json(`${API}/session`, { method: "POST", body: { token: token.value } });
      await begin();
    } catch (err) {
      error.textContent = err.message;
      error.hidden = false;
      token.select();
    }
  };
  const form = el(
    "form",
    { class: "panel", onsubmit: enter },
    el("h1", { text: "Sign in" }),
    el(
      "label",
      { class: "field" },
      el("span", { class: "field-name", text: "Token" }),
      token,
      el("span", { class: "hint", text: "Whoever runs this server has given you one." }),
    ),
    error,
    el("button", { class: "primary", text: "Sign in" }),
  );
  const refused = el("p", {
    class: "notice error",
    text: "The reverse proxy in front of this server has not said who you are. Sign in there.",
  });
  at("main").replaceChildren(el("div", { class: "sign-in" }, session.token_needed ? form : refused));
  token.focus();
}

async function begin() {
  Object.assign(session, await json(`${API}/session`));
  at("version").textContent = session.version;
  const leave = at("leave");
  leave.hidden = !(session.user && session.token_needed);
  at("user").textContent = session.user && session.user !== "local" ? session.user : "";
  if (session.user) await route();
  else signIn();
}

function theme() {
  const names = ["auto", "light", "dark"];
  const shown = () => {
    const now = remembered("theme", "auto");
    const name = names.includes(now) ? now : "auto";
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    at("theme").replaceChildren(icon({ auto: "auto", light: "sun", dark: "moon" }[name]));
    at("theme").setAttribute("aria-label", `Theme: ${name}. Change`);
    at("theme").title = `Theme: ${name}`;
  };
  at("theme").addEventListener("click", () => {
    remember("theme", names[(names.indexOf(remembered("theme", "auto")) + 1) % 3]);
    shown();
    announce(`Theme: ${remembered("theme", "auto")}`);
  });
  shown();
}

function keyboard() {
  const on = at("keys-on");
  on.checked = remembered("keys", "on") === "on";
  on.addEventListener("change", () => remember("keys", on.checked ? "on" : "off"));
  at("help-button").addEventListener("click", () => at("help").showModal());
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || !on.checked || at("help").open) return;
    const { target } = event;
    const typing = target.closest?.("textarea, select, input:not([type=checkbox]):not([type=range])");
    if (typing || (event.key === " " && target.closest?.("button, a, summary, input"))) return;
    if (event.key === "?") at("help").showModal();
    else if (!current.view?.key?.(event.key.length === 1 ? event.key.toLowerCase() : event.key)) return;
    event.preventDefault();
  });
}

addEventListener("hashchange", route);
addEventListener("reshift-signed-out", () => session.user && signIn());
addEventListener("reshift-connection", ({ detail }) => {
  at("connection").hidden = !detail.offline;
});
// A drop beside the zone must not leave the page.
for (const name of ["dragover", "drop"]) addEventListener(name, (event) => event.preventDefault());
addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "AbortError") event.preventDefault();
  else if (event.reason?.message) toast(event.reason.message, "error");
});
at("skip").addEventListener("click", (event) => {
  event.preventDefault();
  at("main").focus();
});
at("leave").addEventListener("click", async () => {
  await json(`${API}/session`, { method: "DELETE" });
  await begin();
});
theme();
keyboard();
await begin();
