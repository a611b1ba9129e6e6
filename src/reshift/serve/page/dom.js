// Elements, icons, numbers as text, and short messages.

export const at = (id) => document.getElementById(id);

// el("button", { class: "primary", onclick: save, text: "Save" }, child, …); false, null and undefined are left out.
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (key === "text") made.textContent = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

// An element of a drawing; the namespace is taken from one that the page has.
export function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS(document.querySelector("svg").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function icon(name) {
  const found = at("icons").content.querySelector(`[data-icon="${name}"]`).cloneNode(true);
  found.setAttribute("aria-hidden", "true");
  return found;
}

export const button = (name, text, onclick, attributes = {}) =>
  el("button", { type: "button", onclick, ...attributes }, name && icon(name), text && el("span", { text }));

export const badge = (kind, name, text) => el("span", { class: `badge ${kind}` }, name && icon(name), el("span", { text }));

export const field = (text, control, hint) =>
  el(
    "label",
    { class: "field" },
    el("span", { class: "field-name", text }),
    control,
    hint && el("span", { class: "hint", text: hint }),
  );

// Wide tables scroll by themselves, with the keyboard, too; the page does not.
export function table(label, heads, rows, attributes = {}) {
  const head = heads.map((text) => el("th", { scope: "col" }, text || el("span", { class: "visually-hidden", text: "Actions" })));
  const body = rows instanceof Element ? rows : el("tbody", {}, rows);
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": `Table of ${label}` },
    el("table", attributes, el("thead", {}, el("tr", {}, head)), body),
  );
}

// [[name, value], …]; a value is text or an element.
export const facts = (rows) =>
  el(
    "dl",
    { class: "facts" },
    rows.map(([name, value]) => [el("dt", { text: name }), el("dd", {}, value instanceof Node ? value : String(value))]),
  );

export const notice = (kind, text) => el("p", { class: `notice ${kind}` }, icon("warning"), el("span", { text }));

export const backTo = (href, text) => el("a", { class: "back", href }, icon("back"), el("span", { text }));

export const number = (value, digits = 3) => {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
};

export const many = (count, one, more = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : more}`;

export function bytes(count) {
  const step = Math.min(4, Math.floor(Math.log2(Math.max(count, 1)) / 10));
  return `${number(count / 1024 ** step)} ${["B", "KiB", "MiB", "GiB", "TiB"][step]}`;
}

export function when(text) {
  if (!text) return "–";
  const date = new Date(text);
  if (text.length <= 10) return date.toLocaleDateString("en-GB", { dateStyle: "medium", timeZone: "UTC" });
  const today = date.toDateString() === new Date().toDateString();
  return date.toLocaleString("en-GB", today ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
}

// Screen readers are told; said again only when the text differs.
export function announce(text) {
  at("live").textContent = text;
}

// A message that goes away by itself; errors stay until they are closed.
export function toast(text, kind = "info") {
  const place = at("toasts");
  for (const old of place.children) if (old.dataset.text === text) old.remove();
  const close = el(
    "button",
    { type: "button", class: "quiet", "aria-label": "Close the message", onclick: () => shown.remove() },
    icon("close"),
  );
  const shown = el("div", { class: `toast ${kind}`, "data-text": text }, el("span", { text }), close);
  place.append(shown);
  if (kind !== "error") setTimeout(() => shown.remove(), 5000);
}

export const remember = (key, value) => {
  try {
    localStorage.setItem(`reshift.${key}`, value);
  } catch {
    // storage may be forbidden: nothing is remembered then
  }
};

export const remembered = (key, otherwise = "") => {
  try {
    return localStorage.getItem(`reshift.${key}`) ?? otherwise;
  } catch {
    return otherwise;
  }
};
